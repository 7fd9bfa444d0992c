# Two commands from a fresh clone: `make quickstart` and `make test`. Both need Python >= 3.10, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install quickstart test test-all test-gpu lint format clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

# Train a small network on a CPU or GPU, on images that the project makes; minutes.
quickstart: $(STAMP)
	$(BIN)/python train.py recipe=quickstart

# Lint, types and tests; no network and no GPU.
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not gpu and not multi_gpu and not slow"

# The slow tests too.
test-all: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not gpu and not multi_gpu"

# On a machine with a GPU.
test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m "gpu or multi_gpu"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell fasttrain tests conf recipes data *.md *.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
