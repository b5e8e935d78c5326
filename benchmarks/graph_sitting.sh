#!/usr/bin/env bash
# One call on a GPU machine, about five minutes: the graph backend's tests, then its figures.
set -uo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src
out=${OUT:-build/gpu}
mkdir -p "$out"
timeout 120 python3 -m pytest -q -m gpu -p no:cacheprovider --tb=short tests/gpu tests/backends 2>&1 |
  tee "$out/gpu-tests-h200.log" | tail -12 | cut -c1-300
for size in 0.6B 1.7B; do
  timeout 120 python3 benchmarks/engine.py "$size-CustomVoice" --backend cuda_graph \
    --streams 1,8,32,64 --rates 5,10,20,40 --seconds 6 --rounds 4 \
    --json "$out/engine-$size-h200.json" 2>&1 | tail -40
  timeout 60 python3 benchmarks/latency.py "$size-CustomVoice" --batches 32 --repeats 3 \
    --json "$out/latency-$size-h200.json" 2>&1 | cut -c1-300
  timeout 30 python3 benchmarks/latency.py "$size-CustomVoice" --max-streams 1 --batches \
    --frames 16 --repeats 2 --json "$out/latency-$size-one-stream-h200.json" 2>&1 |
    grep -E "memory|warmup|build" | cut -c1-300
done
