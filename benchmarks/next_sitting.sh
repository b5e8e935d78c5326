#!/usr/bin/env bash
# One call on a GPU machine, about nine minutes: the GPU tests, then every figure of docs/performance.md
# that has changed last. Where the code is a copy without its history, VIVACE_COMMIT names the commit.
set -uo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src
out=${OUT:-build/gpu}
mkdir -p "$out"
stage() { echo "== $1 ($SECONDS s)"; }
stage "GPU tests, three processes beside each other"
run_tests() {
  timeout 200 python3 -m pytest -q -m gpu -p no:cacheprovider --tb=short -rf "${@/#/tests/gpu/test_}"
}
run_tests compiled_kernels.py fused_kernels.py > /tmp/tests-1 2>&1 &
run_tests engine_on_cuda.py graphs_on_cuda.py official_on_cuda.py > /tmp/tests-2 2>&1 &
run_tests megakernel_on_cuda.py pages_on_cuda.py > /tmp/tests-3 2>&1 &
wait
cat /tmp/tests-? > "$out/gpu-tests-h200.log"
grep -h "^FAILED\|^ERROR\|passed\|failed" /tmp/tests-?
figures() { grep "first audio\|times real\|streams\|a second\|model, per"; }
for size in 0.6B 1.7B; do
  stage "one stream, $size, megakernel, codec in half precision"
  timeout 70 python3 benchmarks/engine.py "$size-CustomVoice:half" --backend megakernel \
    --streams 1,2,4,8 --repeats 5 --rounds 2 \
    --json "$out/engine-$size-megakernel-h200.json" 2>&1 | figures
done
for size in 0.6B 1.7B; do
  stage "many streams and requests at random, $size, codec in half precision"
  timeout 150 python3 benchmarks/engine.py "$size-CustomVoice:half" --backend cuda_graph \
    --streams 1,8,32,64,256 --rates 5,10,20,40 --repeats 2 --rounds 3 \
    --json "$out/engine-$size-half-h200.json" 2>&1 | figures
done
stage "roofline"
timeout 80 python3 benchmarks/kernels.py 0.6B-CustomVoice 1.7B-CustomVoice \
  --json "$out/kernels-h200.json" 2>&1 | grep graph
