#!/usr/bin/env bash
# One call on the borrowed GPU machine: GPU tests, then ms per frame beside the official code.
# carry/official holds wheels of the official package (scripts/official/README.md).
set -uo pipefail
export PYTHONPATH=src PYTHONUNBUFFERED=1
out=${OUT:-/tmp/vivace-out}
mkdir -p "$out" /tmp/official
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
python3 -m pytest -q -m gpu -p no:cacheprovider tests/backends/test_cuda.py 2>&1 | tee "$out/gpu-tests.log" | tail -5
for wheel in carry/official/*.whl; do python3 -m zipfile -e "$wheel" /tmp/official; done
PYTHONPATH=/tmp/official:src timeout 300 python3 benchmarks/frame.py 0.6B-CustomVoice 1.7B-CustomVoice \
  --device cuda --frames 32 --repeats 3 --compare --json "$out/frame-h200.json" 2>&1 | tee "$out/frame.log" | tail -5
