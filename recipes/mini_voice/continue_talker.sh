#!/usr/bin/env bash
# Trains the talker of the shipped voice further on a GPU machine. The CPU encodes new lines while the
# GPU trains on the old ones. Then the training continues with all lines.
#
#   recipes/mini_voice/continue_talker.sh CARRY SECONDS [--smoke]
#
# CARRY contains hibari/ (the teacher), lines.txt.gz, rare.txt.gz, encoder.safetensors, leads.npy,
# codes_a.npy, codes_b.npy and utterances.npz. The script writes talker_a.safetensors,
# talker_b.safetensors, all codes and the logs to $OUT. It starts from the talker in $TALKER if that is
# set, with the settings in $SETS (section.key=value, without spaces). SECONDS is the whole time; new
# lines are encoded for 40 % of it.
set -euo pipefail
carry=$1 seconds=$2 smoke=${3:-}
out=${OUT:-build/talker/out} work=${WORK:-/tmp/mini_voice_talker}
workers=${WORKERS:-13}
source "$(dirname "${BASH_SOURCE[0]}")/gpu_machine.sh"
left() { echo $((seconds - $(now) - $1)); } # seconds until $1 before the end

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
# If this part fails, the next part starts from the shipped voice. If the encoding of new lines fails,
# the next part trains on the old lines alone.
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
  --take-over "$work/first" --out "$work/last" --until "$(left 20)" || echo "the last stage failed or was stopped at its time limit"
wait $first
for part in first last; do
  [ -f "$work/$part/talker_b.safetensors" ] && cp "$work/$part"/talker_?.safetensors "$out/"
  cat "$work/$part/log.jsonl" || true
done > "$out/train.jsonl"
cp "$codes"/{codes_a.npy,codes_b.npy,utterances.npz} "$out/"  # for the next run
tail -n 3 "$out/read.log" && ls -l "$out"
[ -f "$work/last/done" ]
