#!/usr/bin/env bash
# Tests and benchmarks of one CPU, by stage:
#
#     bash benchmarks/cpu.sh [STAGE...]        default: models calls embedded codec command
#
#   tests      tests of the CPU backend and of quantized checkpoints
#   models     ms per frame of 0.6B and 1.7B with int8 and int4 weights, float32 and the official code
#   streams    ms per frame of several streams of 0.6B
#   calls      whole calls of 0.6B and 1.7B: memory, load time, first audio and speed
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
set -uo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src
out=${OUT:-build/cpu} suffix=${SUFFIX:-} note=${NOTE:-} work=${WORK:-/tmp/vivace-cpu} official=${OFFICIAL:-}
limit=${LIMIT:-1800}
cores=${CORES:-0-$(($(nproc) - 1))}
threads=2
[ "$(taskset -c "$cores" nproc)" -lt 8 ] || threads="2 8"
mkdir -p "$out" "$work"

measured() { # name of the JSON, command
  local name=$1
  shift
  echo "-- $name ($SECONDS s)"
  timeout -k 5 "$limit" taskset -c "$cores" python3 "$@" --note "$note" --json "$out/$name$suffix.json" ||
    echo "$name: exit code $?"
}

run_stage() {
  case $1 in
    tests)
      timeout -k 5 "$limit" taskset -c "$cores" python3 -m pytest -q -p no:cacheprovider --tb=short tests/backends/cpu \
        -m "(ci or not ci) and not slow" || echo "tests: exit code $?"
      ;;
    models)
      PYTHONPATH=src${official:+:$official} measured cpu-models-0.6B benchmarks/cpu_models.py 0.6B-CustomVoice \
        --weights eager int8 int4 ${official:+official} --threads $threads --frames 8
      measured cpu-models-1.7B benchmarks/cpu_models.py 1.7B-CustomVoice --weights int8 int4 --threads $threads \
        --frames 8
      ;;
    streams)
      measured cpu-streams-0.6B benchmarks/cpu_models.py 0.6B-CustomVoice --weights int8 int4 --threads $threads \
        --streams 1 4 8 --frames 8
      ;;
    calls)
      measured cpu-calls-0.6B benchmarks/cpu_calls.py 0.6B-CustomVoice --out "$work" --threads $threads \
        --batches 1 4 --frames 40 --repeats 3
      measured cpu-calls-1.7B benchmarks/cpu_calls.py 1.7B-CustomVoice --out "$work" --threads ${threads##* } \
        --batches 1 --frames 40 --repeats 3
      ;;
    embedded) measured cpu-mini-cpp benchmarks/cpu.py --threads 1 2 ;;
    codec) measured codec-cpu benchmarks/codec_cpu.py --threads 2 --repeats 5 ;;
    command) measured command benchmarks/command.py --first ;;
    *)
      echo "unknown stage $1; the first lines of $0 list the stages" >&2
      return 2
      ;;
  esac
}

[ $# -gt 0 ] || set -- models calls embedded codec command
for stage in "$@"; do
  echo "== $stage ($SECONDS s)"
  run_stage "$stage" || exit $?
done
