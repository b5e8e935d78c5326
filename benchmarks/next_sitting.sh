#!/usr/bin/env bash
# One call on a GPU machine, about nine minutes: what the last session left to be shown there.
# Where the code is a copy without its history, VIVACE_COMMIT names the commit. The server's figures
# need fastapi and uvicorn, which may lie unpacked in carry/site.
set -uo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src:carry/site
out=${OUT:-build/gpu}
mkdir -p "$out"
stage() { echo "== $1"; }
stage "word timings, and an exit without an abort"
timeout 60 python3 -c "
from vivace.tts import TTS
tts = TTS.load(device='cuda')
print(tts.speak('Good evening, and good night.', seed=1, timings=True).words)"
echo "rc $?"
stage "GPU tests"
timeout 170 python3 -m pytest -q -m gpu -p no:cacheprovider --tb=short tests/gpu 2>&1 |
  tee "$out/tests-h200.log" | tail -12 | cut -c1-200
for precision in "" ":half"; do
  stage "64 streams, 0.6B$precision"
  timeout 75 python3 benchmarks/engine.py "0.6B-CustomVoice$precision" --backend cuda_graph \
    --streams 1,8,64 --repeats 2 --rounds 2 \
    --json "$out/engine-0.6B${precision/:/-}-h200.json" 2>&1 | tail -14
done
stage "64 streams over HTTP, 1.7B"
timeout 120 python3 benchmarks/serve.py 1.7B-CustomVoice --backend cuda_graph --frames 100 \
  --streams 1 16 64 --repeats 2 --json "$out/serve-1.7B-h200.json" 2>&1 | tail -14
