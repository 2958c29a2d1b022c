# What a person types. `make help` explains each target; everything happens inside the checkout (.venv, .sluice)
# and the cache ~/.cache/sluice.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV_VERSION := 0.13.8
STAMP  := $(VENV)/.installed
# Tests mostly wait for real servers, so that three share two cores well.
WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: help install up down status test kubernetes check format bench clean

help:  ## Explain each target
	@awk 'BEGIN {FS = ":.*## "; print "Targets:"} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## Set up .venv from the lock file (nothing is started)

$(STAMP): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "sluice: Python 3.11 or newer is needed as $(PYTHON); install it, or say where it is: make PYTHON=/path/to/python3"; exit 1; }
	@test -x $(BIN)/python || { echo "sluice: creating $(VENV)"; $(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "sluice: Python cannot make a virtual environment; on Debian: apt install python3-venv"; exit 1; }; }
	@$(BIN)/python -m uv --version >/dev/null 2>&1 || { echo "sluice: installing uv"; \
		$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null; \
		$(BIN)/python -m pip install --quiet uv==$(UV_VERSION); }
	@echo "sluice: installing the locked packages into $(VENV)"
	@VIRTUAL_ENV= $(BIN)/python -m uv sync --frozen --inexact --all-extras --all-groups --python $(BIN)/python
	@touch $@

up: install  ## Start the whole platform on this machine; Ctrl-C stops it
	@$(BIN)/sluice up

down: install  ## Stop what `sluice up --detach` started
	@$(BIN)/sluice down

status: install  ## Say what is running where
	@$(BIN)/sluice status

test: install  ## Run all tests, on real Kafka, Spark and Dagster
	@$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

kubernetes: install  ## Build a Kubernetes for the cluster tests, which skip without it (Go, five minutes once)
	@$(BIN)/python -m tests.cluster.binaries

check: install  ## Format, lint, types, import contracts and fast tests, in two minutes
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/pytest -q -n $(WORKERS) --dist loadfile -m "not kafka and not spark and not e2e and not cluster and not browser"

format: install  ## Format the code and mend what can be mended by itself
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: install  ## Say which benchmarks there are
	@sed -n '/^| /p' benchmarks/README.md

clean:  ## Remove the virtual environment and the platform's state (topics, samples, logs)
	@test ! -x $(BIN)/sluice || $(BIN)/sluice down || true
	rm -rf $(VENV) .sluice .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
