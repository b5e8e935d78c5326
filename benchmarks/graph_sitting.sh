#!/usr/bin/env bash
# One call on a GPU machine, about six minutes: the graph backend's tests, then its figures.
set -uo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src
out=${OUT:-build/gpu}
mkdir -p "$out"
timeout 70 python3 -m pytest -q -m gpu -p no:cacheprovider --tb=short tests/gpu 2>&1 |
  tee "$out/graph-tests.log" | tail -8
for shape in 0.6B-CustomVoice 1.7B-CustomVoice; do
  timeout 60 python3 benchmarks/latency.py "$shape" --batches 32 64 8 --repeats 3 \
    --json "$out/latency-${shape%%-*}.json" 2>&1 | cut -c1-300
done
for shape in 0.6B-CustomVoice 1.7B-CustomVoice; do
  timeout 90 python3 benchmarks/engine.py "$shape" --backend cuda_graph --streams 1,8,32,64 \
    --rates 5,10,20 --seconds 5 --repeats 3 --json "$out/engine-${shape%%-*}.json" \
    2>&1 | tail -40
done
timeout 25 python3 benchmarks/latency.py 0.6B-CustomVoice --max-streams 1 --batches --frames 16 \
  --repeats 2 --json "$out/latency-one-stream.json" 2>&1 | grep -E "memory|warmup|build"
