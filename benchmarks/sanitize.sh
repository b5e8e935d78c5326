#!/usr/bin/env bash
# Runs the kernels under compute-sanitizer (memcheck and racecheck, or SANITIZE_TOOLS) in small runs of at most
# SANITIZE_SECONDS each. Prints one line per tool and part; logs go to $OUT. benchmarks/sanitized.py describes the parts,
# which include controls. The tool is found in the CUDA toolkit or in the wheel nvidia-cuda-sanitizer-api (installed, or
# as a file in carry/sanitizer).
#   SANITIZE_PARTS="racecheck:known=240 memcheck:fused half"   selected parts: PART or TOOL:PART, optionally =SECONDS
#   SANITIZE_LIST=1                                            only list what would run
set -uo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} PYTORCH_NO_CUDA_MEMORY_CACHING=1
out=${OUT:-build/gpu}

declare -A parts=(
  [memcheck]="megakernel fused half hopper wide memory"
  [racecheck]="megakernel known fused half hopper race named elected"
)
runs=() # tool, part, seconds
for check in ${SANITIZE_TOOLS:-memcheck racecheck}; do
  for chosen in ${SANITIZE_PARTS:-${parts[$check]}}; do
    IFS='=' read -r name seconds <<< "$chosen"
    [[ $name = *:* && ${name%%:*} != "$check" ]] && continue
    runs+=("$check ${name##*:} ${seconds:-${SANITIZE_SECONDS:-60}}")
  done
done
if [ -n "${SANITIZE_LIST:-}" ]; then
  printf '%s\n' "${runs[@]}"
  exit 0
fi
work=$(mktemp -d)
mkdir -p "$out"

find_tool() {
  local folders=("${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda*) folder
  for folder in "${folders[@]}"; do
    for name in "$folder/compute-sanitizer/compute-sanitizer" "$folder/bin/compute-sanitizer"; do
      [ -x "$name" ] && { echo "$name"; return; }
    done
  done
  command -v compute-sanitizer && return
  mkdir -p "$work/wheel" "$work/tool"
  local wheel site
  wheel=$(ls carry/sanitizer/*"$(uname -m)".whl 2> /dev/null | head -1)
  if [ -n "$wheel" ]; then
    python3 -m zipfile -e "$wheel" "$work/wheel"
    site=$work/wheel
  else
    site=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  fi
  for folder in "$site"/nvidia/cu1?/ "$site"/nvidia/cuda_sanitizer_api/; do
    [ -e "$folder/bin/compute-sanitizer" ] || continue
    cp -f "$folder"/bin/compute-sanitizer "$folder"/lib/*anitizer*.so "$folder"/lib/*Injection*.so \
      "$folder"/lib/libTreeLauncher*.so "$work/tool" 2> /dev/null
    cp "$folder"/bin/TreeLauncher* "$work/tool" 2> /dev/null
    chmod +x "$work"/tool/*
    echo "$work/tool/compute-sanitizer"
    return
  done
}

tool=$(find_tool)
if [ -z "$tool" ]; then
  echo "compute-sanitizer: not there (neither a CUDA toolkit nor the wheel nvidia-cuda-sanitizer-api)"
  exit 3
fi
"$tool" --version | grep Version
python3 scripts/make_tiny_checkpoints.py "$work/tiny" > /dev/null
# Without the tool first: it compiles the kernels, and shows that the runs themselves work.
for part in $(for run in "${runs[@]}"; do echo "$run"; done | awk '{print $2}' | sort -u); do
  case $part in megakernel | known | fused | half | hopper | wide) ;; *) continue ;; esac
  timeout 90 python3 benchmarks/sanitized.py "$part" "$work/tiny" > "$work/plain-$part" 2>&1 &
done
wait
tail -qn 1 "$work"/plain-*
port=49152
sanitize() { # tool, part, seconds, port
  local log=$work/$1-$2.log size= limit=$3
  local kernels='^[a-z_]+_kernel$'
  [ "$2" = hopper ] && kernels='^(attend_[a-z]+|add_and_normalise|wgmma_[a-z]+)$'
  [ "$1 $2" = "racecheck hopper" ] && kernels='^(attend_[a-z]+|add_and_normalise)$' # the others use mbarriers
  [ "$2" = wide ] && kernels='^(product|paired|unit)_[0-9]+$'
  [[ $2 = megakernel || $2 = known ]] && kernels='^(talker|predictor)_kernel$'
  [ "$1" = racecheck ] && size=small
  timeout -k 5 "$limit" "$tool" --tool "$1" --port "$4" --launch-timeout 40 --print-limit 20 \
    --kernel-name "regex=$kernels" python3 benchmarks/sanitized.py "$2" "$work/tiny" $size > "$log" 2>&1
  local rc=$?
  [ $rc = 124 ] && echo "========= ended after $limit s" >> "$log"
  echo "$1 $2: exit $rc; $(grep -h 'SUMMARY' "$log" | tail -1 | tr -d =) $(grep -h ': done\|ended after\|Error:' "$log" | tail -2 | tr '\n' ' ')"
}
keep_logs() { # also if it is ended from outside
  for log in "$work"/*.log; do
    echo "== $(basename "$log" .log)"
    head -c 60000 "$log"
  done > "$out/sanitize-h200.log"
  rm -rf "$work"
}
trap keep_logs EXIT
trap 'exit 124' TERM
for run in "${runs[@]}"; do
  read -r check part seconds <<< "$run"
  sanitize "$check" "$part" "$seconds" $port & port=$((port + 100))
done
wait
