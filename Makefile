# Everything a person types. Each target makes .venv and installs what it needs first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
PEERS  := .venv-peers
GRID   := runs/key_query_grid
SPREAD := -n auto --dist loadgroup
# Memory given back to the system after every step is paid for in page faults: jemalloc, where it is installed, keeps it.
KEEP   := GLIBC_TUNABLES=glibc.malloc.hugetlb=1 LD_PRELOAD=$(shell ldconfig -p 2>/dev/null | awk '/libjemalloc.so.2/ {print $$NF; exit}') \
          MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always,narenas:1

.PHONY: ablation test test-all lint bench bench-loop bench-peers parity clean

ablation: $(STAMP)  ## train the key x query grid on the embedded corpus, print the table, write table.md and report.html
	$(BIN)/depthroute sweep --config configs/ablations/key_query_grid.py --workdir $(GRID)

test: $(STAMP)  ## the fast lane
	$(BIN)/python -m pytest $(SPREAD)

test-all: $(STAMP)  ## every lane
	$(BIN)/python -m pytest $(SPREAD) -m ""

lint: $(STAMP)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## every router against plain residual: step time, memory, compile time
	$(KEEP) $(BIN)/depthroute bench --out runs/bench

bench-loop: $(STAMP)  ## the training loop against the bare compiled step
	$(BIN)/python benchmarks/loop_overhead.py

bench-peers: $(PEERS)/installed  ## against PyTorch, hyper-connections, x-transformers, attn-res; long, and needs a C++ compiler
	$(KEEP) $(PEERS)/bin/python -m benchmarks.peers.run --out runs/bench_peers

parity: $(PEERS)/installed  ## routers against independent implementations, weights copied
	$(PEERS)/bin/python -m pytest tests/parity

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(PEERS)/installed: pyproject.toml constraints.txt benchmarks/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/peers/requirements.txt -e '.[dev]'
	touch $@

clean:  ## remove what the targets made, except runs
	rm -rf $(VENV) $(PEERS) build dist *.egg-info
