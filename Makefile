# Everything a person types. Each target makes .venv and installs what it needs first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
GRID   := runs/key_query_grid

.PHONY: ablation test test-all lint bench-loop clean

ablation: $(STAMP)  ## train the key x query grid on the embedded corpus, print the table, write table.md and report.html
	$(BIN)/depthroute sweep --config configs/ablations/key_query_grid.py --workdir $(GRID)

test: $(STAMP)  ## the fast lane
	$(BIN)/python -m pytest

test-all: $(STAMP)  ## every lane
	$(BIN)/python -m pytest -m ""

lint: $(STAMP)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench-loop: $(STAMP)  ## the training loop against the bare compiled step
	$(BIN)/python benchmarks/loop_overhead.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:  ## remove what the targets made, except runs
	rm -rf $(VENV) build dist *.egg-info
