# Everything runs in .venv, which is made on first use and brought up to date when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help test lint format demo bench-check docs-tables clean

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

bench-check: $(READY) ## compare the losses' speed with the stored ratios; on a quiet machine
	$(BIN)/python -m benchmarks check

docs-tables: $(READY) ## write README.md's table of losses from the registry
	$(BIN)/python docs/tables.py

clean: ## remove .venv and every cache
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The build backend is installed first and used as it is, so that it too is the pinned one, whichever pip the machine has.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@
