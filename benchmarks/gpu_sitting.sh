#!/usr/bin/env bash
# One call on a GPU machine: ms per frame beside the official code, then the GPU tests.
# carry/official holds wheels of the official package (scripts/official/README.md).
set -uo pipefail
export PYTHONUNBUFFERED=1
out=${OUT:-build/gpu}
mkdir -p "$out" build/official
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
for wheel in carry/official/*.whl; do python3 -m zipfile -e "$wheel" build/official; done
PYTHONPATH=build/official:src python3 benchmarks/frame.py 0.6B-CustomVoice 1.7B-CustomVoice \
  --device cuda --frames 32 --repeats 3 --compare --json "$out/frame-h200.json" 2>&1 | tail -3
PYTHONPATH=src python3 -m pytest -q -m gpu -p no:cacheprovider tests/backends/test_cuda.py 2>&1 |
  tee "$out/gpu-tests.log" | tail -5
