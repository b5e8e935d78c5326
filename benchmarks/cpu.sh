#!/usr/bin/env bash
# Tests and benchmarks of one CPU, by stage:
#
#     bash benchmarks/cpu.sh [STAGE...]        default: models calls embedded codec command
#     TOTAL=540 FRAMES=32 REPEATS=2 CORES=8-15 bash benchmarks/cpu.sh brief
#
#   tests      tests of the CPU backend and of quantized checkpoints
#   models     ms per frame of 0.6B and 1.7B with int8 and int4 weights, float32 and the official code;
#              models-0.6B and models-1.7B are stages too
#   streams    ms per frame of several streams of 0.6B
#   calls      whole calls of 1.7B and 0.6B: memory, load time, first audio and speed; calls-0.6B and
#              calls-1.7B are stages too
#   brief      calls, embedded, command, models: about seven minutes on eight cores
#   embedded   load time, first audio and speed of the embedded voice
#   codec      ms per frame of the codec by instruction set
#   command    CPU seconds of `vivace "Hi."`
#
# Variables:
#   OUT        folder of the JSON files (default build/cpu)
#   SUFFIX     ends their names, such as -arm
#   NOTE       is kept in them, such as how quiet the machine was
#   CORES      cores to use, as taskset names them (default all); with eight or more, 2 and 8 threads are measured
#   WORK       folder for written checkpoints, 10 GB (default /tmp/vivace-cpu)
#   OFFICIAL   folder with the official packages (scripts/official/README.md), to measure them too
#   LIMIT      seconds for one command (default 1800)
#   TOTAL      seconds for all commands; what does not fit is left out (default: no limit)
#   FRAMES     frames of a whole call (default 40)
#   REPEATS    of a whole call; the median is reported (default 3)
#
# The C++ kernels are compiled before the first stage. Tables of all results are printed at the end.
set -uo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src
out=${OUT:-build/cpu} suffix=${SUFFIX:-} note=${NOTE:-} work=${WORK:-/tmp/vivace-cpu} official=${OFFICIAL:-}
limit=${LIMIT:-1800} total=${TOTAL:-0} frames=${FRAMES:-40} repeats=${REPEATS:-3}
cores=${CORES:-0-$(($(nproc) - 1))}
threads=2
[ "$(taskset -c "$cores" nproc)" -lt 8 ] || threads="2 8"
mkdir -p "$out" "$work"

limited() { # name, command; at most as long as LIMIT and TOTAL permit
  local name=$1 seconds=$limit
  shift
  if [ "$total" -gt 0 ] && [ $((total - SECONDS)) -lt "$seconds" ]; then seconds=$((total - SECONDS)); fi
  if [ "$seconds" -lt 5 ]; then
    echo "$name: left out, no time is left"
    return
  fi
  echo "-- $name ($SECONDS s)"
  timeout -k 5 "$seconds" taskset -c "$cores" "$@" || echo "$name: exit code $?"
}

measured() { # name of the JSON, command
  local name=$1
  shift
  limited "$name" python3 "$@" --note "$note" --json "$out/$name$suffix.json"
}

calls() { # shape, threads, batches
  measured "cpu-calls-$1" benchmarks/cpu_calls.py "$1-CustomVoice" --out "$work" --threads $2 --batches $3 \
    --frames "$frames" --repeats "$repeats"
}

run_stage() {
  case $1 in
    tests)
      limited tests python3 -m pytest -q -p no:cacheprovider --tb=short tests/backends/cpu \
        -m "(ci or not ci) and not slow"
      ;;
    brief)
      for part in calls embedded command models; do run_stage "$part"; done
      ;;
    models)
      run_stage models-0.6B
      run_stage models-1.7B
      ;;
    models-0.6B)
      PYTHONPATH=src${official:+:$official} measured cpu-models-0.6B benchmarks/cpu_models.py 0.6B-CustomVoice \
        --weights eager int8 int4 ${official:+official} --threads $threads --frames 8
      ;;
    models-1.7B)
      measured cpu-models-1.7B benchmarks/cpu_models.py 1.7B-CustomVoice --weights int8 int4 --threads $threads \
        --frames 8
      ;;
    streams)
      measured cpu-streams-0.6B benchmarks/cpu_models.py 0.6B-CustomVoice --weights int8 int4 --threads $threads \
        --streams 1 4 8 --frames 8
      ;;
    calls)
      run_stage calls-1.7B
      run_stage calls-0.6B
      ;;
    calls-0.6B) calls 0.6B "$threads" "1 4" ;;
    calls-1.7B) calls 1.7B "${threads##* }" 1 ;;
    embedded) measured cpu-mini-cpp benchmarks/cpu.py --threads 1 2 --repeats 15 ;;
    codec) measured codec-cpu benchmarks/codec_cpu.py --threads 2 --repeats 5 ;;
    command) measured command benchmarks/command.py --first ;;
    *)
      echo "unknown stage $1; the first lines of $0 list the stages" >&2
      return 2
      ;;
  esac
}

[ $# -gt 0 ] || set -- models calls embedded codec command
limited kernels python3 -c "
import time
from vivace.backends.cpu.binding import instructions
began = time.monotonic()
print(f'{instructions()}, compiled or loaded in {time.monotonic() - began:.1f} s')
"
for stage in "$@"; do
  echo "== $stage ($SECONDS s)"
  run_stage "$stage" || exit $?
done
echo "== results ($SECONDS s)"
python3 benchmarks/cpu_summary.py "$out" --suffix="$suffix"
