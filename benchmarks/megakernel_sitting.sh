#!/usr/bin/env bash
# One call on a GPU machine, about five minutes: the persistent kernels' tests, then figures.
# Where the code is a copy without its history, VIVACE_COMMIT names the commit.
set -uo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src
out=${OUT:-build/gpu}
mkdir -p "$out"
measure() { timeout 75 python3 benchmarks/engine.py "$@" 2>&1 | tail -14; }
timeout 90 python3 -m pytest -q -m gpu -p no:cacheprovider --tb=short -rP \
  tests/gpu/test_megakernel_on_cuda.py 2>&1 | tee "$out/megakernel-tests-h200.log" |
  grep -E "batch|passed|failed|Error" | cut -c1-200
timeout 60 python3 benchmarks/persistent.py 0.6B-CustomVoice 1.7B-CustomVoice \
  --json "$out/persistent-h200.json" 2>&1 | tail -16
measure 0.6B-CustomVoice --backend megakernel --streams 1,2,4,8 --repeats 3 --rounds 2 \
  --json "$out/engine-0.6B-megakernel-h200.json"
measure 0.6B-CustomVoice:half --backend cuda_graph --streams 1,2,4,8,64 --repeats 2 --rounds 2 \
  --json "$out/engine-0.6B-half-h200.json"
timeout 40 python3 benchmarks/codec.py --json "$out/codec-fused-h200.json" 2>&1 | tail -3
measure 1.7B-CustomVoice --backend megakernel --streams 1,2,4,8 --repeats 3 --rounds 2 \
  --json "$out/engine-1.7B-megakernel-h200.json"
