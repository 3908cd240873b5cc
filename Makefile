# Two commands do all set-up: `make demo` and `make test`.  Slow proofs: `make verify [AREA=folder of tests]` (storms,
# live, real, slurm, ...), `make verify AREA=strangers SEEDS=1-5`, `make verify AREA=mutants SEED=1`, `make bench [BENCH=name]`.
# No target needs an activated environment.
PYTHON ?= python3.11
PYTHON := $(shell command -v $(PYTHON) 2>/dev/null || echo python3)
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Tests start processes by the thousand: where nothing compiled may be kept, each compiles all of the product again.
unexport PYTHONDONTWRITEBYTECODE
AREA ?= all
BENCH ?= all
SEED ?= 1
# `make slurm ACCOUNTING=1`: with slurmdbd and MariaDB, for sacct.
ACCOUNTING ?=

.PHONY: setup demo test check bench verify docs slurm clean

setup: $(VENV)/.dev node_modules/.done
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[torch,plot,control]'
	touch $@
$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[torch,plot,control,postgres,lab,transformers,lightning,elastic,paramserver]' --group dev
	touch $@ $(VENV)/.demo
# Azurite, the Azure emulator of the contract tests, comes from npm; without npm those tests skip with a word.
node_modules/.done: package.json package-lock.json
	if command -v npm >/dev/null; then npm ci --silent --no-audit --no-fund; else mkdir -p node_modules; fi
	touch $@

demo: $(VENV)/.demo
	$(BIN)/python examples/demo/demo.py

check: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Three at a time on two cores: half of a test's time it waits for processes.
test: check node_modules/.done
	$(BIN)/python -m pytest -m 'not slow' -n 3 --dist loadfile

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(BENCH)

verify: $(VENV)/.dev node_modules/.done
ifeq ($(AREA),mutants)
	$(BIN)/python -m tests.mutants --seed $(SEED)
else
	SEEDS='$(SEEDS)' $(BIN)/python -m pytest -m slow $(if $(filter strangers,$(AREA)),-n 2) $(if $(filter all,$(AREA)),tests,tests/$(AREA))
endif

# A real Slurm for tests/slurm, unpacked from the distribution's packages into the user's cache; `make test` does it by itself.
slurm: $(VENV)/.dev
	$(BIN)/python -m tests.slurm.packages $(if $(ACCOUNTING),--accounting)

docs: $(VENV)/.dev
	$(BIN)/python docs/build.py

clean:
	rm -rf $(VENV) out
