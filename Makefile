.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3.11
CORE := $(VENV)/.core
SETUP := $(VENV)/.ready
WORKERS ?= 2
# Of the tests that make test-all adds: most of their time, ranks and hosts wait for each other.
WAITING ?= 3
SEED ?= $(shell date +%s)
PIP := pip install -qq --disable-pip-version-check

help:
	@echo "make demo             set everything up, measure a network on 1 and 2 ranks here, predict, check it, write a page"
	@echo "make test             checks, then unit, property, house and integration tests with real PyTorch processes:"
	@echo "                      no root, no Debian packages, about eight minutes on two cores"
	@echo "make test-all         make test, then what it deselects: Slurm, MPI, sshd, Ray, virtual clusters, browser,"
	@echo "                      faults, other frameworks, fresh random examples (SEED=n repeats them); root; installs packages"
	@echo "make test-cluster     of those, only the tests of many hosts"
	@echo "make test-frameworks  install every framework (12 GB, half an hour), prove and measure every one"
	@echo "make check            formatting, lint, types, direction of imports"
	@echo "make benchmarks       run every benchmark and write docs/benchmarks.md (hours, root);"
	@echo "                      QUICK=1: each in its shortest form, ten minutes; ONLY=utilisation,equal: some"
	@echo "make mutants          change the code in 560 small ways and count those that tests notice: at least 85 %;"
	@echo "                      ONLY=cost COUNT=30 SEED=7: some; PROCESSES=20: code that only PyTorch processes reach"
	@echo "make docs             write docs/reference anew from the code, and build the site of docs/ in results/site"
	@echo "make evaluations      measure and predict the published evaluations, write docs/evaluations (root); QUICK=1: predict"
	@echo "make lock             pin dependencies anew, with hashes; make wheel: what is published, in dist/"
	@echo "One test: $(BIN)/pytest tests/unit/test_units.py -k seconds; a deselected one: add -m full"

setup: $(SETUP)

# Paceline and what it needs; setup adds what developing it needs.
$(CORE): requirements/core.txt requirements/build.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed: apt-get install python3.11"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "this Python cannot make virtual environments: apt-get install python3-venv"; rm -rf $(VENV); exit 2; }
	$(BIN)/$(PIP) --require-hashes -r requirements/core.txt -r requirements/build.txt
	$(BIN)/$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(SETUP): $(CORE) requirements/dev.txt
	$(BIN)/$(PIP) --require-hashes -r requirements/core.txt -r requirements/dev.txt
	@touch $@

pytorch: setup
	@$(BIN)/paceline frameworks install pytorch

demo: $(CORE)
	$(BIN)/paceline demo

check: setup
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/mypy
	$(BIN)/lint-imports

# Which tests are deselected: pyproject.toml, [tool.pytest.ini_options]. A test marked `alone` runs with no other beside it.
test: setup
	$(MAKE) --no-print-directory --jobs 2 check pytorch
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal

# Real engines for the tests of many hosts, a real browser for the tests of pages, tools that build frameworks.
PACKAGES := slurm-wlm munge openmpi-bin libopenmpi-dev mpich openssh-server openssh-client iperf3 iputils-ping iptables \
  iproute2 util-linux gcc g++ libc6-dev chromium
RAY_ENV := $(VENV)/ray
TRAINERS_ENV := $(VENV)/trainers
WITH_ENGINES := PACELINE_RAY_PYTHON=$(CURDIR)/$(RAY_ENV)/bin/python

root:
	@test "$$(id -u)" = 0 || { echo "these tests need root: they make network namespaces and mount file systems"; exit 2; }

engines: setup $(RAY_ENV)/.ready $(TRAINERS_ENV)/.ready
	@dpkg -s $(PACKAGES) >/dev/null 2>&1 || { apt-get update -q && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $(PACKAGES); }

$(RAY_ENV)/.ready: requirements/ray.txt | $(SETUP)
	$(PYTHON) -m venv $(RAY_ENV)
	$(RAY_ENV)/bin/$(PIP) -r requirements/ray.txt
	@touch $@

# PyTorch first, as in the pytorch environment; then the locked rest, none of which may bring another PyTorch.
TORCH_LOCK := src/paceline/bench/frameworks/pytorch/lock.txt
$(TRAINERS_ENV)/.ready: requirements/trainers.txt requirements/trainers-alone.txt $(TORCH_LOCK) | $(SETUP)
	$(PYTHON) -m venv $(TRAINERS_ENV)
	$(TRAINERS_ENV)/bin/$(PIP) -r $(TORCH_LOCK)
	$(TRAINERS_ENV)/bin/$(PIP) --no-deps --require-hashes -r requirements/trainers.txt -r requirements/trainers-alone.txt
	@touch $@

trainers: $(TRAINERS_ENV)/.ready

# What fails beside other tests is repeated without them, and printed as repeated: other load disturbs measurements of time.
FULL := $(BIN)/pytest -q -m "(full or hypothesis) and not frameworks" --hypothesis-profile fresh --hypothesis-seed $(SEED)
test-all: root test engines
	$(WITH_ENGINES) $(FULL) -n $(WAITING) --dist worksteal || { [ $$? = 1 ] && \
	  echo "repeating what failed, one test at a time:" && $(WITH_ENGINES) $(FULL) --last-failed --last-failed-no-failures none; }

test-cluster: root engines
	$(WITH_ENGINES) $(BIN)/pytest -m full tests/integration/cluster

test-frameworks: setup
	$(BIN)/paceline frameworks install all
	$(BIN)/paceline frameworks verify
	SEED=$(SEED) $(BIN)/pytest -m "" tests/integration/frameworks tests/unit/test_frameworks.py -k "not computes_what"

# QUICK=1 runs the shortest form of each and writes to results/; the full run writes benchmarks/results and the page.
benchmarks: setup
	$(BIN)/python tools/benchmarks.py $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

# Mutations of cost, model, measurements, runtime and explain, each in a copy of the tree.
mutants: setup
	$(BIN)/python tools/mutants.py $(if $(ONLY),--only $(ONLY)) $(if $(COUNT),--count $(COUNT)) $(if $(PROCESSES),--processes $(PROCESSES)) $(if $(JSON),--json $(JSON)) --seed $(SEED)

SITE_ENV := $(VENV)/site

$(SITE_ENV)/.ready: requirements/docs.txt | $(SETUP)
	$(PYTHON) -m venv $(SITE_ENV)
	$(SITE_ENV)/bin/$(PIP) -r requirements/docs.txt
	@touch $@

# Strict: a link to a page or heading that does not exist is an error.
docs: setup $(SITE_ENV)/.ready
	$(BIN)/python tools/reference.py
	$(SITE_ENV)/bin/mkdocs build --strict --quiet

# What is measured is kept beside the page; QUICK=1 measures nothing: it predicts anew and takes the rest from there.
PAGES := docs/evaluations
evaluations: setup
	for name in $(basename $(notdir $(wildcard examples/evaluations/*.toml))); do kept=$(PAGES)/$$name.json; \
	  $(if $(QUICK),,rm -f $$kept;) what="--measured $$kept"; \
	  $(if $(QUICK),[ -e $$kept ] || what=--predict-only;) \
	  $(BIN)/paceline evaluate $$name $$what --page $(PAGES)/$$name.md || exit 1; done

# Wheel and source distribution in dist/, built with the locked hatchling.
wheel: setup
	rm -rf dist
	$(BIN)/hatchling build --directory dist

# Every version and the hash of every file; make setup installs nothing else.
LOCK := $(BIN)/pip-compile --quiet --upgrade --strip-extras --no-header --no-emit-options --generate-hashes --allow-unsafe
lock: setup
	$(LOCK) --output-file requirements/core.txt pyproject.toml
	$(LOCK) --output-file requirements/build.txt requirements/build.in
	$(LOCK) --output-file requirements/dev.txt requirements/dev.in
	$(LOCK) --output-file requirements/docs.txt requirements/docs.in
	$(LOCK:--allow-unsafe=) --unsafe-package torch --output-file requirements/trainers.txt requirements/trainers.in

.PHONY: help setup pytorch root engines trainers demo check test test-all test-cluster test-frameworks benchmarks mutants docs \
  evaluations lock wheel
