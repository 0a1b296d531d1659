# make demo | make test | make check | make setup | make docs | make lock
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3.11
SETUP := $(VENV)/.ready

help:
	@echo "make demo    set everything up, measure a network on 1 and 2 ranks here, say what was found"
	@echo "make test    set everything up, run every check and test"
	@echo "make check   formatting, lint, types, direction of imports"
	@echo "make docs    write docs/reference anew from the code"
	@echo "make lock    pin dependencies anew"

setup: $(SETUP)

$(SETUP): requirements/core.txt requirements/dev.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed: apt-get install python3.11"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "this Python cannot make virtual environments: apt-get install python3-venv"; rm -rf $(VENV); exit 2; }
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements/core.txt -r requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	$(BIN)/paceline run examples/studies/demo.toml

check: setup
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/pytest

docs: setup
	$(BIN)/python tools/reference.py

lock: setup
	$(BIN)/pip-compile --quiet --upgrade --strip-extras --no-header --no-emit-options --output-file requirements/core.txt pyproject.toml
	$(BIN)/pip-compile --quiet --upgrade --strip-extras --no-header --no-emit-options --allow-unsafe --output-file requirements/dev.txt requirements/dev.in

.PHONY: help setup demo check test docs lock
