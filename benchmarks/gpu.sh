#!/usr/bin/env bash
# GPU tests and benchmarks of one NVIDIA GPU, by stage:
#
#     bash benchmarks/gpu.sh [STAGE...]        default: tests single streams parts
#
#   tests      tests marked gpu, in parallel processes
#   single     TTS.load() without options: ms per frame, first audio, 1 to 8 streams
#   many       64 streams with 64 slots, 256 streams with 256
#   streams    1 to 256 streams with 256 slots
#   sweep      64 streams with other settings of the engine and the codec
#   live       64 and 256 streams, and 1,000 (0.6B) or 700 (1.7B) streams that are played in real time
#   load       requests at random times
#   served     vivace serve --workers over HTTP: 64 streams at one instant, and live streams
#   parts      talker, predictor and codec alone
#   backends   every backend that can run, 0.6B
#   roofline   every kernel against the memory bandwidth
#   memory     device memory of one stream
#   start      a new process to its first audio, cold and warm, 0.6B
#   first_calls equal speech and weights in the first calls of 26 new processes with 1,000 slots, 0.6B
#   audible    the first audible sample after a silent start, in process and over HTTP
#   official   ms per frame, compared with the official code (wheels in carry/official, scripts/official/README.md)
#   sanitize   compute-sanitizer (benchmarks/sanitize.sh)
#   endurance  a million frames with the codec's samples, 64 and 256 slots, 0.6B
#   targets    the figures of all stages, compared with their targets
#
# JSON files go to $OUT (default build/gpu), and so do the logs of failed commands. GPU_SECONDS limits the whole run.
# VIVACE_COMMIT names the commit in a copy without git history. STREAMS_ROUNDS and REPEATS shorten a run.
#
# Runs of ten minutes each that cover a change of the kernels:
#     tests sanitize audible · sweep · many live served · endurance parts
set -uo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src
out=${OUT:-build/gpu} all=${GPU_SECONDS:-3600} logs=$(mktemp -d) rounds=${STREAMS_ROUNDS:-3} repeats=${REPEATS:-25}
status=0 # 1: a command failed; the later stages run all the same
mkdir -p "$out"
trap 'rm -rf "$logs"' EXIT

limited() { # seconds, command
  local limit=$1 left=$((all - SECONDS > 1 ? all - SECONDS : 1))
  shift
  timeout -k 5 $((limit < left ? limit : left)) "$@"
}

figures() { # seconds, name of the JSON and log, lines to show, command
  local limit=$1 name=$2 shown=$3
  shift 3
  limited "$limit" python3 "$@" --json "$out/$name-h200.json" > "$logs/$name" 2>&1 || {
    echo "$name: exit code $? after at most $limit s"
    tail -n 6 "$logs/$name"
    cp "$logs/$name" "$out/$name.log"
    status=1
  }
  grep -E "$shown" "$logs/$name" || true
}

engine() { # seconds, name, arguments
  local limit=$1 name=$2
  shift 2
  figures "$limit" "$name" "load  |first |times real|streams|a second|model, per|^(eager|cuda_graph|megakernel)" \
    benchmarks/engine.py "$@"
}

tests() { limited 300 python3 -m pytest -q -m gpu -p no:cacheprovider --tb=short -rf "$@"; }

run_stage() {
  local size
  case $1 in
    tests)
      tests tests/gpu/test_megakernel_on_cuda.py -k "0.6B or 1.7B" > "$logs/tests-1" 2>&1 &
      tests tests/gpu/test_megakernel_on_cuda.py -k "not 0.6B and not 1.7B" > "$logs/tests-2" 2>&1 &
      tests tests/gpu/test_fused_kernels.py tests/gpu/test_slot_kernels.py tests/gpu/test_hopper_kernels.py \
        > "$logs/tests-3" 2>&1 &
      tests tests/gpu/test_graphs_on_cuda.py tests/gpu/test_places_on_cuda.py tests/backends/test_cuda.py > "$logs/tests-4" 2>&1 &
      tests tests/gpu/test_engine_on_cuda.py tests/gpu/test_official_on_cuda.py > "$logs/tests-5" 2>&1 &
      tests tests/gpu/test_pages_on_cuda.py tests/gpu/test_compiled_kernels.py tests/gpu/test_start_on_cuda.py \
        > "$logs/tests-6" 2>&1 &
      tests tests/gpu/test_codec_on_cuda.py tests/benchmarks/test_gpu_commands.py > "$logs/tests-7" 2>&1 &
      tests tests/gpu/test_adapters_on_cuda.py > "$logs/tests-8" 2>&1 &
      wait
      cat "$logs"/tests-? > "$out/gpu-tests.log"
      if grep -h "^FAILED\|^ERROR" "$logs"/tests-?; then status=1; fi
      tail -qn 1 "$logs"/tests-?
      ;;
    single)
      for size in 0.6B 1.7B; do
        engine 90 "engine-$size-default" "$size-CustomVoice" --streams 1,2,4,8 --repeats "$repeats" --rounds "$rounds"
      done
      ;;
    many)
      for size in 0.6B 1.7B; do
        for count in 64 256; do
          engine 90 "engine-$size-$count" "$size-CustomVoice" --streams $count --repeats 3 --rounds "$rounds"
        done
      done
      ;;
    streams)
      for size in 0.6B 1.7B; do
        engine 120 "engine-$size-streams" "$size-CustomVoice" --streams 1,8,32,64,256 --repeats 3 --rounds "$rounds"
      done
      ;;
    sweep)
      for size in 0.6B 1.7B; do
        figures 285 "stream-sweep-$size" "audio a second|left out" benchmarks/stream_sweep.py "$size-CustomVoice" \
          --share 0.25 0.35 0.65 0.8 1 --waves 1 2 8 --turn 8 16 --ahead 2 8 --pass 256 1024 --seconds 250
      done
      ;;
    live)
      for size in 0.6B:1000 1.7B:700; do
        engine 120 "engine-${size%:*}-live" "${size%:*}-CustomVoice" --streams 64,256 --live "${size#*:}" --seconds 5 \
          --repeats 2 --rounds "$rounds"
      done
      ;;
    load)
      for size in 0.6B 1.7B; do
        engine 170 "engine-$size-half" "$size-CustomVoice" --streams 1,8,32,64,256 --rates 5,10,20,40 --seconds 15 \
          --repeats 3 --rounds "$rounds"
      done
      ;;
    served)
      for size in 0.6B 1.7B; do
        figures 120 "served-$size" "streams:|live:" benchmarks/serve.py "$size-CustomVoice" --workers 4 --clients 6 \
          --streams 64 --frames 100 --repeats 2 --rounds 2 --seconds 4 \
          --live $([ $size = 0.6B ] && echo 600 || echo 500)
      done
      ;;
    parts)
      figures 60 persistent "megakernel|cuda_graph" benchmarks/persistent.py 0.6B-CustomVoice 1.7B-CustomVoice
      figures 60 codec-fused precision benchmarks/codec.py
      ;;
    backends)
      engine 90 backends-0.6B 0.6B-CustomVoice --backend cuda_graph --streams 1 --repeats 1 --rounds 1 --frames 32 \
        --batches 1,8,64
      ;;
    roofline) figures 90 kernels graph benchmarks/kernels.py 0.6B-CustomVoice 1.7B-CustomVoice ;;
    memory)
      figures 30 latency-0.6B-one-stream "memory|warmup|build" benchmarks/latency.py 0.6B-CustomVoice \
        --max-streams 1 --batches --frames 16 --repeats 2
      ;;
    start)
      figures 180 start-0.6B "cold|warm|parts" benchmarks/start.py 0.6B-CustomVoice \
        --backends auto cuda_graph:64 cuda_graph:1000
      ;;
    first_calls)
      figures 170 first-calls-0.6B "^run|processes|not compared|kernel log|NVRM|Xid" benchmarks/first_calls.py \
        0.6B-CustomVoice --backend cuda_graph --streams 1000 --runs 25 --digest-loaded 8 --seconds 130
      ;;
    audible) figures 90 audible silent benchmarks/audible.py 0.6B-CustomVoice 1.7B-CustomVoice ;;
    official)
      mkdir -p build/official
      for size in carry/official/*.whl; do python3 -m zipfile -e "$size" build/official; done
      PYTHONPATH=build/official:src figures 120 frame . benchmarks/frame.py 0.6B-CustomVoice 1.7B-CustomVoice \
        --device cuda --frames 32 --repeats 3 --compare
      ;;
    sanitize) limited 300 env OUT="$out" bash benchmarks/sanitize.sh ;;
    endurance)
      for count in 64 256; do
        figures 270 "endurance-0.6B-$count" '": (true|false)|frames_of_all|"seconds"' benchmarks/endurance.py \
          0.6B-CustomVoice --backend cuda_graph --batch $count --codec half --seconds 180
      done
      ;;
    targets) python3 benchmarks/targets.py "$out" ;;
    *)
      echo "unknown stage $1; the first lines of $0 list the stages" >&2
      exit 2
      ;;
  esac
}

[ $# -gt 0 ] || set -- tests single streams parts
for stage in "$@"; do
  echo "== $stage ($SECONDS s)"
  run_stage "$stage" || status=1
done
exit $status
