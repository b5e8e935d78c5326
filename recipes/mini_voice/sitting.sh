#!/usr/bin/env bash
# One sitting of the talker on a GPU machine, from the shipped voice: its cores read new lines while
# the GPU trains on the old ones, then it goes on with all of them.
#
#   recipes/mini_voice/sitting.sh CARRY SECONDS [--smoke]
#
# CARRY holds hibari/ (the teacher), lines.txt.gz, rare.txt.gz, encoder.safetensors, leads.npy,
# codes_a.npy, codes_b.npy and utterances.npz. Writes talker_a.safetensors, talker_b.safetensors,
# all codes and the logs to $OUT; begins from the talker in $TALKER, if that is set, and takes the
# settings in $SETS (section.key=value, without spaces). SECONDS is the whole time; new lines are
# read for 40 % of it.
set -euo pipefail
carry=$1 seconds=$2 smoke=${3:-}
out=${OUT:-build/sitting/out} work=${WORK:-/tmp/mini_voice_sitting}
python=${PYTHON:-python3} workers=${WORKERS:-13}
export PYTHONPATH=src:. PYTHONUNBUFFERED=1
begun=$(date +%s)
left() { echo $((seconds - ($(date +%s) - begun) - $1)); }

rm -f "$work"/{first,last}/{stop,done,log.jsonl,talker_?.safetensors}
mkdir -p "$work/known" "$work/all" "$work/first" "$work/last" "$out"
for name in encoder.safetensors leads.npy codes_a.npy codes_b.npy utterances.npz; do
  cp "$carry/$name" "$work/known/"
done
for name in lines rare; do gunzip -c "$carry/$name.txt.gz" > "$work/$name.txt"; done
"$python" -c "
from pathlib import Path
from recipes.mini_voice.import_asset import ASSET, import_asset
import_asset(ASSET, Path('$work/known'))"
[ -n "${TALKER:-}" ] && cp "$TALKER"/talker_?.safetensors "$work/known/"

common=(--set "data.lines=\"$work/lines.txt\"" --set "data.rare=\"$work/rare.txt\""
  --set "data.teacher=\"$carry/hibari\""
  --set "data.model=\"$carry/hibari/hibari/assets/hibari_durations.onnx\"")
for item in ${SETS:-}; do common+=(--set "$item"); done
train=("${common[@]}" --set train_talker.streaming_fraction=0.3 --set train_talker.num_samples=0)
[ -n "$smoke" ] && train+=(--set train_talker.rows_per_step=512 --set train_talker.predictor_frames=64
  --set train_talker.num_dev=8)

timeout "$seconds" "$python" -m recipes.mini_voice.more_codes "${common[@]}" \
  --set "data.num_workers=$workers" --set data.lines_per_shard="${PART:-64}" \
  --resume "$work/known" --out "$work/all" --seconds $((seconds * 2 / 5)) > "$out/read.log" 2>&1 &
reading=$!
# Should this part fail, the next begins from the shipped voice; should the reading fail, from it
# with the old lines alone.
{
  timeout "$(left 0)" "$python" -m recipes.mini_voice.train_talker "${train[@]}" \
    --set "train_talker.codes=\"$work/known\"" --set train_talker.lr=1e-4 \
    --set train_talker.final_lr=1.0 --resume "$work/known" --out "$work/first" \
    --until "$(left 60)" || cp "$work"/known/talker_?.safetensors "$work/first/"
  touch "$work/first/done"
} &
first=$!
codes=$work/all
wait $reading || { tail -n 20 "$out/read.log"; codes=$work/known; }
cp -n "$work/known/leads.npy" "$codes/" || true
timeout "$(left -40)" "$python" -m recipes.mini_voice.train_talker "${train[@]}" \
  --set "train_talker.codes=\"$codes\"" --set train_talker.lr=8e-4 \
  --take-over "$work/first" --out "$work/last" --until "$(left 20)" || echo "it did not end by itself"
wait $first
for part in first last; do
  [ -f "$work/$part/talker_b.safetensors" ] && cp "$work/$part"/talker_?.safetensors "$out/"
  cat "$work/$part/log.jsonl" || true
done > "$out/sitting.jsonl"
cp "$codes"/{codes_a.npy,codes_b.npy,utterances.npz} "$out/"  # the next sitting reads on from there
tail -n 3 "$out/read.log" && ls -l "$out"
[ -f "$work/last/done" ]
