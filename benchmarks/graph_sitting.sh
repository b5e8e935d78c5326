#!/usr/bin/env bash
# One call on a GPU machine, about four minutes: the graph backend's tests, then its figures.
set -uo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src
out=${OUT:-build/gpu}
mkdir -p "$out"
timeout 180 python3 -m pytest -q -m gpu -p no:cacheprovider --tb=short -rP tests/gpu 2>&1 |
  tee "$out/gpu-tests-h200.log" | tail -12 | cut -c1-300
for size in 0.6B 1.7B; do
  timeout 120 python3 benchmarks/engine.py "$size-CustomVoice" --backend cuda_graph \
    --streams 1,8,32,64 --rates 5,10,20,40 --seconds 3 --repeats 3 --rounds 3 \
    --json "$out/engine-$size-h200.json" 2>&1 | tail -40
done
timeout 30 python3 benchmarks/latency.py 0.6B-CustomVoice --max-streams 1 --batches --frames 16 \
  --repeats 2 --json "$out/latency-0.6B-one-stream-h200.json" 2>&1 |
  grep -E "memory|warmup|build" | cut -c1-300
