#!/usr/bin/env bash
# One call on a GPU machine, about three minutes: the persistent kernel's tests, then whole calls.
set -uo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src
out=${OUT:-build/gpu}
mkdir -p "$out"
timeout 80 python3 -m pytest -q -m gpu -p no:cacheprovider --tb=short -rP \
  tests/gpu/test_megakernel_on_cuda.py tests/gpu/test_engine_on_cuda.py 2>&1 |
  tee "$out/megakernel-tests-h200.log" | grep -E "batch|passed|failed|Error" | cut -c1-300
for size in 0.6B 1.7B; do
  timeout 60 python3 benchmarks/engine.py "$size-CustomVoice" --backend megakernel \
    --streams 1,8 --repeats 3 --rounds 2 \
    --json "$out/engine-$size-megakernel-h200.json" 2>&1 | tail -14
done
