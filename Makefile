# Everything runs in .venv, which is made on first use and brought up to date when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help test lint format demo docs check-all coverage bench-check docs-tables package clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: lint ## ruff and mypy, then every test, on JOBS=2 processes
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS)

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY) ## let ruff repair what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

demo: $(READY) ## train a small network on the embedded glyphs, and measure it on characters it has never seen
	@$(BIN)/nearfar train

docs: $(READY) ## the documentation as a site, in site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

coverage: $(READY) ## which lines and branches the tests reach
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --cov=nearfar --cov-branch --cov-report=term:skip-covered

package: $(READY) ## wheel and sdist, in dist/
	$(BIN)/python -m build --no-isolation

check-all: lint package docs ## everything: the tests in their long form, the package, the site, and the speed
	NEARFAR_LONG=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS)
	$(MAKE) bench-check

bench-check: $(READY) ## compare the losses' speed with the stored ratios; on a quiet machine
	$(BIN)/python -m benchmarks check

docs-tables: $(READY) ## write README.md's table of losses from the registry
	$(BIN)/python docs/tables.py

clean: ## remove .venv and every cache
	rm -rf $(VENV) dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The build backend is installed first and used as it is, so that it too is the pinned one, whichever pip the machine has.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@
