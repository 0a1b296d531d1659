# make demo | make test | make test-cluster | make check | make setup | make docs | make lock
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3.11
SETUP := $(VENV)/.ready

help:
	@echo "make demo    set everything up, measure a network on 1 and 2 ranks here, predict 4-64 GPUs, write a report"
	@echo "make test    set everything up, run every check and test"
	@echo "make test-cluster  only the tests of many hosts: Slurm, MPI, sshd, Ray, virtual clusters"
	@echo "make test-frameworks  install every framework (12 GB, half an hour), prove and measure every one"
	@echo "make check   formatting, lint, types, direction of imports"
	@echo "make docs    write docs/reference anew from the code"
	@echo "make lock    pin dependencies anew"

setup: $(SETUP)

$(SETUP): requirements/core.txt requirements/dev.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed: apt-get install python3.11"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "this Python cannot make virtual environments: apt-get install python3-venv"; rm -rf $(VENV); exit 2; }
	$(BIN)/pip install -qq --disable-pip-version-check -r requirements/core.txt -r requirements/dev.txt
	$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	$(BIN)/paceline run examples/studies/demo.toml
	$(BIN)/paceline calibrate demo --output results/demo-calibration.json --profiles results/demo-profiles
	$(BIN)/paceline predict --profile results/demo-profiles/resnet20-pytorch-ddp-batch-16.profile --cluster examples/clusters/v100-10gbe-16x4.toml --devices 4,8,16,32,64
	$(BIN)/paceline report demo

check: setup
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/mypy
	$(BIN)/lint-imports

# Real engines for the tests of many hosts, a real browser for the tests of pages, tools that build frameworks.
PACKAGES := slurm-wlm munge openmpi-bin libopenmpi-dev mpich openssh-server openssh-client iperf3 iputils-ping iptables \
  iproute2 util-linux gcc g++ libc6-dev chromium
RAY_ENV := $(VENV)/ray
WITH_ENGINES := PACELINE_TEST_CLUSTER=1 PACELINE_RAY_PYTHON=$(CURDIR)/$(RAY_ENV)/bin/python

engines: setup $(RAY_ENV)/.ready
	@test "$$(id -u)" = 0 || { echo "the tests need root: they make network namespaces"; exit 2; }
	@dpkg -s $(PACKAGES) >/dev/null 2>&1 || { apt-get update -q && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $(PACKAGES); }

$(RAY_ENV)/.ready: requirements/ray.txt | $(SETUP)
	$(PYTHON) -m venv $(RAY_ENV)
	$(RAY_ENV)/bin/pip install -qq --disable-pip-version-check -r requirements/ray.txt
	@touch $@

# Two at a time, then one after the other those that need the machine for themselves.
test: setup
	$(MAKE) --no-print-directory --jobs 2 check engines
	$(BIN)/pytest -n 2 --dist worksteal -m "not alone"
	$(WITH_ENGINES) $(BIN)/pytest -m alone

test-cluster: engines
	$(WITH_ENGINES) $(BIN)/pytest tests/integration/cluster

test-frameworks: setup
	$(BIN)/paceline frameworks install all
	$(BIN)/paceline frameworks verify
	PACELINE_TEST_FRAMEWORKS=1 $(BIN)/pytest tests/integration/frameworks tests/unit/test_frameworks.py -k "not computes"

docs: setup
	$(BIN)/python tools/reference.py

lock: setup
	$(BIN)/pip-compile --quiet --upgrade --strip-extras --no-header --no-emit-options --output-file requirements/core.txt pyproject.toml
	$(BIN)/pip-compile --quiet --upgrade --strip-extras --no-header --no-emit-options --allow-unsafe --output-file requirements/dev.txt requirements/dev.in

.PHONY: help setup engines demo check test test-cluster test-frameworks docs lock
