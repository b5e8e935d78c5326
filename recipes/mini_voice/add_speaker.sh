#!/usr/bin/env bash
# Adds the second speaker on a GPU machine, or trains both further. Kokoro synthesizes the speech of the
# second speaker on the GPU. Then the script trains its encoder, and the decoder and the talker of both.
# Meanwhile the CPU encodes new lines of the first speaker.
#
#   recipes/mini_voice/add_speaker.sh CARRY SECONDS [--smoke]
#
# CARRY contains hibari/ and kokoro/ (the teachers), lines.txt.gz, rare.txt.gz, the output of
# `share_books`, and discriminators, listener and talker_{a,b} of `import_asset`. The script writes
# talker_{a,b}, decoder, encoder (of the second speaker), discriminators, samples.npz and the logs to
# $OUT. SECONDS is the whole time. If CARRY/second/encoder.safetensors exists, no encoder is trained.
# The decoder trains $CYCLES times, each time from the last result and with the whole schedule of
# learning rates. The decoder in $OUT is the mean of all, which is smoother; samples.npz is of the last.
set -uo pipefail
carry=$(realpath "$1") seconds=$2 smoke=${3:-}
out=$(realpath -m "${OUT:-build/speakers/out}") work=$(realpath -m "${WORK:-/tmp/mini_voice_speakers}")
workers=${WORKERS:-13} readers=${READERS:-12}
heart_workers=${HEART_WORKERS:-4} cycles=${CYCLES:-2}
source "$(dirname "${BASH_SOURCE[0]}")/gpu_machine.sh"
export OMP_NUM_THREADS=1
at() { echo $((seconds * $1 / 100)); }                # a moment, in hundredths of all
left() { echo $(($(at "$1") - $(now) > 5 ? $(at "$1") - $(now) : 5)); } # seconds until then
READ=${READ:-17} SPEAKER=${SPEAKER:-27} LINES=${LINES:-56} GAN=${GAN:-65} TALKER=97

rm -rf "$work"/{tree,known,two,gan,gan_?,talker,rare,all}
mkdir -p "$work"/{tree,shards,known,two,gan,talker,rare,all} "$out"
cp -r src recipes "$work/tree" && cd "$work/tree" || exit 2 # the checkout may be replaced meanwhile
for name in lines rare; do gunzip -c "$carry/$name.txt.gz" > "$work/$name.txt"; done
common=(--set 'data.speakers=["heart", "michael"]'
  --set "data.lines=\"$work/lines.txt\"" --set "data.rare=\"$work/rare.txt\""
  --set "data.shards=\"$work/shards\"" --set "data.teacher=\"$carry/hibari\""
  --set "data.model=\"$carry/hibari/hibari/assets/hibari_durations.onnx\""
  --set "data.kokoro=\"$carry/${KOKORO:-kokoro/kokoro_durations.onnx}\""
  --set "data.styles=\"$carry/kokoro\"")
[ -n "$smoke" ] && common+=(--smoke)
for item in ${SETS:-}; do common+=(--set "$item"); done
limits=(--set "data.max_lines=${MAX_LINES:-9720}" --set "data.num_lines_other=${MAX_LINES:-9000}")
stage() { "$python" -m "recipes.mini_voice.$1" "${common[@]}" "${@:2}"; }

share_gpu "$work"

say "reading: the second speaker, and the first for the decoder"
stage synthesize "${limits[@]}" --set "data.num_workers=$heart_workers" --only 0 > "$work/read0.log" 2>&1 &
stage synthesize "${limits[@]}" --set "data.num_workers=$readers" --only 1 > "$work/read1.log" 2>&1 &
for _ in $(seq "${FIRST_SHARD:-60}"); do
  grep -q "^shard" "$work/read1.log" && break
  sleep 1
done
if ! grep -q "^shard" "$work/read1.log" || grep -q "without the GPU" "$work/read1.log"; then
  say "the second speaker is not read:"
  tail -n 30 "$work/read1.log"
  kill $(jobs -p)
  exit 3
fi
for _ in $(seq "$(left "$READ")"); do
  [ -z "$(jobs -rp)" ] && break
  sleep 1
done
touch "$work/shards/stop"
say "$(grep -c "^shard" "$work/read1.log") shards of the second speaker, $(grep -c "^shard" "$work/read0.log") of the first"

say "the second speaker's encoder; new lines of the first"
stage more_codes --set "data.num_workers=$workers" --set data.lines_per_shard=64 \
  --resume "$carry" --out "$work/rare" --seconds "$(left "$LINES")" > "$work/more.log" 2>&1 &
more=$!
speaker_seconds=$(left "$SPEAKER")
cp "$carry"/{encoder,decoder}.safetensors "$carry"/{codes_a,codes_b}.npy "$carry/utterances.npz" "$work/known/"
[ -f "$carry/second/encoder.safetensors" ] && speaker_seconds=0 &&
  cp "$carry/second/encoder.safetensors" "$work/known/"
stage train_speaker "${limits[@]}" --resume "$work/known" --out "$work/two" --seconds "$speaker_seconds" \
  2>&1 | tail -n 12
cp "$carry"/{discriminators,listener}.safetensors "$work/two/"
train_decoder() {
  local from=$work/two made=()
  for cycle in $(seq "$cycles"); do
    mkdir -p "$work/gan_$cycle"
    stage train_gan "${limits[@]}" --as-read --set "train_gan.codes=\"$work/two\"" \
      --set "train_gan.state=\"$work/gan_$cycle/state.pt\"" --resume "$from" \
      --out "$work/gan_$cycle" --until $(($(left "$GAN") / (cycles - cycle + 1))) || break
    from=$work/gan_$cycle
    made+=("$from")
  done
  [ "${#made[@]}" -gt 0 ] || return 1
  cat "$work"/gan_?/log.jsonl > "$work/gan/log.jsonl"
  cp "$from"/{discriminators.safetensors,samples.npz} "$work/gan/"
  stage average_decoders "${made[@]}" --out "$work/gan"
}
say "the decoder of both"
train_decoder > "$work/gan.log" 2>&1 &
gan=$!

wait $more || tail -n 5 "$work/more.log"
tail -n 2 "$work/more.log"
say "the talker of both: examples first"
folders=("$carry" "$work/two")
[ -f "$work/rare/utterances.npz" ] && folders+=("$work/rare")
stage merge_codes "${folders[@]}" --out "$work/all"
stage train_talker --set train_talker.num_samples=0 --set train_talker.streaming_fraction=0.3 \
  --set "train_talker.codes=\"$work/all\"" --set "train_talker.lr=${LR:-8e-4}" \
  --resume "$carry" --out "$work/talker" --until "$(left $TALKER)" > "$work/talker.log" 2>&1 &
talker=$!
wait $gan || tail -n 5 "$work/gan.log"
say "$(tail -n 1 "$work/gan.log")"
wait $talker || tail -n 5 "$work/talker.log"
cp "$work"/talker/talker_?.safetensors "$work"/gan/{decoder,discriminators}.safetensors "$out/"
cp "$work/two/encoder.safetensors" "$work/gan/samples.npz" "$out/"
cat "$work"/{read1,more}.log | grep -v "^shard" > "$out/read.log"
cat "$work"/{two,gan,talker}/log.jsonl > "$out/train.jsonl"
say "done"
grep "talker dev" "$work/talker.log" | tail -n 2
ls -l "$out"
[ -f "$out/talker_b.safetensors" ] && [ -f "$out/decoder.safetensors" ]
