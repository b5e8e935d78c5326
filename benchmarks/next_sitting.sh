#!/usr/bin/env bash
# One call on a GPU machine, about nine minutes: what the last session left to be shown there.
# Where the code is a copy without its history, VIVACE_COMMIT names the commit. The server's figures
# need fastapi and uvicorn, which may lie unpacked in carry/site.
set -uo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src:carry/site
out=${OUT:-build/gpu}
mkdir -p "$out"
stage() { echo "== $1"; }
stage "GPU tests, three processes beside each other"
run_tests() {
  timeout 240 python3 -m pytest -q -m gpu -p no:cacheprovider --tb=short -rf "${@/#/tests/gpu/test_}"
}
run_tests compiled_kernels.py engine_on_cuda.py graphs_on_cuda.py > /tmp/tests-1 2>&1 &
run_tests fused_kernels.py official_on_cuda.py > /tmp/tests-2 2>&1 &
run_tests megakernel_on_cuda.py > /tmp/tests-3 2>&1 &
wait
cat /tmp/tests-? > "$out/gpu-tests-h200.log"
grep -h "^FAILED\|passed\|failed" /tmp/tests-?
for size in 0.6B 1.7B; do
  stage "many streams and requests at random, $size, codec in half precision"
  timeout 150 python3 benchmarks/engine.py "$size-CustomVoice:half" --backend cuda_graph \
    --streams 1,8,32,64 --rates 5,10,20,40 --repeats 2 --rounds 2 \
    --json "$out/engine-$size-half-h200.json" 2>&1 | tail -24
done
stage "64 streams, 0.6B, 3xTF32"
timeout 75 python3 benchmarks/engine.py 0.6B-CustomVoice --backend cuda_graph --streams 1,8,64 \
  --repeats 2 --rounds 2 --json "$out/engine-0.6B-split-h200.json" 2>&1 | tail -14
