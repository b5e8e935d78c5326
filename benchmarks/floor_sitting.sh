#!/usr/bin/env bash
# One call on a GPU machine, under ten minutes: the tests of the graph backend, then every figure of the table
# that benchmarks/floor.py prints at the end, beside what must hold. A stage ends at its own limit, and all of them in FLOOR_SECONDS.
# Where the code is a copy without its history, VIVACE_COMMIT names the commit. Eight files come back in $OUT.
set -uo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src
out=${OUT:-build/gpu} all=${FLOOR_SECONDS:-590} logs=$(mktemp -d)
mkdir -p "$out"
trap 'rm -rf "$logs"' EXIT
left() { echo $((all - SECONDS > 1 ? all - SECONDS : 1)); }
limited() { # seconds, command
  local limit=$1
  shift
  timeout -k 5 $((limit < $(left) ? limit : $(left))) "$@"
}
stage() { echo "== $1 ($SECONDS s)"; }
ended() { [ "$1" = 0 ] || { echo "ended with $1"; tail -n 3 "$logs/$2"; }; } # exit code, log
tests() { limited 130 python3 -m pytest -q -m gpu -p no:cacheprovider --tb=short -rf "${@/#/tests/gpu/test_}"; }
engine() { # seconds, name of the JSON, shape, options
  local limit=$1 name=$2
  shift 2
  limited "$limit" python3 benchmarks/engine.py "$@" --json "$out/$name-h200.json" > "$logs/$name" 2>&1
  ended $? "$name"
  grep "first audio\|times real\|streams\|a second\|model, per" "$logs/$name"
}

stage "GPU tests, three processes beside each other"
tests ledger_kernels.py pages_on_cuda.py > "$logs/tests-1" 2>&1 &
tests graphs_on_cuda.py > "$logs/tests-2" 2>&1 &
tests engine_on_cuda.py > "$logs/tests-3" 2>&1 &
wait
cat "$logs"/tests-? > "$out/gpu-tests-h200.log"
grep -h "^FAILED\|^ERROR" "$logs"/tests-?
tail -qn 1 "$logs"/tests-?
for size in 0.6B 1.7B; do
  stage "one stream, $size, megakernel, codec in half precision"
  engine 75 "engine-$size-megakernel" "$size-CustomVoice:half" --backend megakernel \
    --streams 1,2,4,8 --repeats 25 --rounds 2
done
many() { # seconds, size
  stage "many streams and requests at random, $2, codec in half precision"
  engine "$1" "engine-$2-half" "$2-CustomVoice:half" --backend cuda_graph \
    --streams 1,8,32,64,256 --rates 5,10,20,40 --seconds 15 --repeats 3 --rounds 3
}
many 170 0.6B
many 150 1.7B
stage "predictor and codec alone"
limited 60 python3 benchmarks/persistent.py 0.6B-CustomVoice 1.7B-CustomVoice \
  --json "$out/persistent-h200.json" > "$logs/persistent" 2>&1
ended $? persistent
limited 40 python3 benchmarks/codec.py --json "$out/codec-fused-h200.json" > "$logs/codec" 2>&1
ended $? codec
stage "every backend that runs here, 0.6B"
engine 90 backends-0.6B 0.6B-CustomVoice:half --backend cuda_graph --streams 1 --repeats 1 --rounds 1 \
  --frames 32 --batches 1,8,64
grep "^eager\|^cuda_graph\|^megakernel" "$logs/backends-0.6B"
stage "what must be"
python3 benchmarks/floor.py "$out"
