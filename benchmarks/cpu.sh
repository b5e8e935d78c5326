#!/usr/bin/env bash
# Tests and benchmarks of one CPU, by stage:
#
#     bash benchmarks/cpu.sh [STAGE...]        default: models calls embedded codec command
#
#   tests      tests of the CPU backend and of quantized checkpoints
#   models     ms per frame of 0.6B and 1.7B with int8 and int4 weights, beside float32 and the official code
#   calls      whole calls of 0.6B and 1.7B: memory, load time, first audio and speed
#   embedded   load time, first audio and speed of the embedded voice
#   codec      ms per frame of the codec by instruction set
#   command    CPU seconds of `vivace "Hi."`
#
# JSON files go to $OUT (default build/cpu). CORES names the cores, as taskset does (default: all). SUFFIX ends the names
# of the files, such as `-arm`. NOTE is kept in the files, such as how quiet the machine was. WORK is a folder for written
# checkpoints (default /tmp/vivace-cpu, 5 GB). OFFICIAL names a folder with the official packages
# (scripts/official/README.md); without it the official code is left out.
set -uo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src
out=${OUT:-build/cpu} suffix=${SUFFIX:-} note=${NOTE:-} work=${WORK:-/tmp/vivace-cpu} official=${OFFICIAL:-}
cores=${CORES:-0-$(($(nproc) - 1))}
mkdir -p "$out" "$work"

measured() { # seconds, name of the JSON, command
  local limit=$1 name=$2
  shift 2
  echo "-- $name ($SECONDS s)"
  timeout -k 5 "$limit" taskset -c "$cores" python3 "$@" --note "$note" --json "$out/$name$suffix.json" ||
    echo "$name: exit code $?"
}

run_stage() {
  case $1 in
    tests)
      timeout -k 5 200 taskset -c "$cores" python3 -m pytest -q -p no:cacheprovider --tb=short tests/backends/cpu \
        -m "(ci or not ci) and not slow" || echo "tests: exit code $?"
      ;;
    models)
      PYTHONPATH=src${official:+:$official} measured 90 cpu-models-0.6B benchmarks/cpu_models.py 0.6B-CustomVoice \
        --weights eager int8 int4 ${official:+official} --threads 2 8 --frames 8
      measured 60 cpu-models-1.7B benchmarks/cpu_models.py 1.7B-CustomVoice --weights int8 int4 --threads 2 8 --frames 8
      ;;
    calls)
      measured 120 cpu-calls-0.6B benchmarks/cpu_calls.py 0.6B-CustomVoice --out "$work" --threads 2 8 --batches 1 4 \
        --frames 40 --repeats 3
      measured 120 cpu-calls-1.7B benchmarks/cpu_calls.py 1.7B-CustomVoice --out "$work" --threads 8 --batches 1 \
        --frames 40 --repeats 3
      ;;
    embedded) measured 60 cpu-mini-cpp benchmarks/cpu.py --threads 1 2 ;;
    codec) measured 60 codec-cpu benchmarks/codec_cpu.py --threads 2 --repeats 5 ;;
    command) measured 60 command benchmarks/command.py --first ;;
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
