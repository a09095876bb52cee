#!/usr/bin/env bash
# Every router against plain residual in bfloat16 at width 1024, 24 and 48 layers: for one GPU with 16 GB of memory or more.
#
#   benchmarks/gpu.sh                                      with JAX's GPU build in `python3`, or in $PYTHON; installs nothing
#   OUT=runs/gpu benchmarks/gpu.sh                         also writes bench.json, table.md, bench.png ... into $OUT
#   benchmarks/gpu.sh --config.data.batch=16               other arguments go to `depthroute bench`; later ones win
#
# Prints the table last. Meant to take under six minutes; not yet timed on a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."

export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}"

exec "${PYTHON:-python3}" -c 'import sys; from depthroute.cli import main; sys.exit(main())' bench \
    --layers 24,48 --repeats 8 ${OUT:+--out "$OUT"} \
    --config.model.dtype=bfloat16 --config.model.dim=1024 --config.model.heads=16 --config.model.kv_heads=16 \
    --config.model.mlp_dim=2816 --config.data.seq_len=1024 --config.data.batch=2 "$@"
