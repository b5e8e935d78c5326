#!/usr/bin/env bash
# Trains a voice of many speakers on a GPU machine, in one call for each part.
#
#   recipes/mini_voice/train_many.sh read|codec|decoder|talker CARRY SECONDS [--smoke]
#   recipes/mini_voice/train_many.sh check FOLDER SECONDS [--smoke]
#
# read:    starts the synthesis with hibari on all cores, which continues after the call.
# codec:   synthesizes with Kokoro on the GPU. Meanwhile trains encoder, codebooks and decoder of all
#          speakers, from the codec in CARRY. Then encodes all lines.
# decoder: trains the decoder with discriminators; mean/ is the mean of the decoders of the last
#          minutes. Meanwhile trains the speaker encoder, encodes further lines of the first speaker,
#          and begins with the talker (not with EARLY_TALKER=0). With GAN=N, the decoder is trained
#          for N seconds, which may end in the part `talker`.
# talker:  trains talker and predictor for presets and speaker vectors, from the talker in CARRY or of
#          the part before. Meanwhile trains the codec's encoder in the released layout for ENCODER
#          seconds (300; 0: not at all).
# With CLONING=0, there are no training voices, no speaker loss and no speaker encoder: the voice has
# the presets alone.
#
# check:   runs `codec`, `decoder` and `talker` for SECONDS each, with generated files in FOLDER.
#
# `pack_many.sh unpack` writes the input folder CARRY. On the same machine, a part reads the results of
# earlier parts from $WORK. On another machine, CARRY/made must contain the files that they wrote to
# $OUT. SECONDS is the time of the part. Checkpoints are written every minute; the same call continues
# from them.
set -uo pipefail
part=$1 carry=$(realpath -m "$2") seconds=$3 smoke=${4:-}
out=$(realpath -m "${OUT:-build/many/out}") work=$(realpath -m "${WORK:-/tmp/mini_voice_many}")
readers=${READERS:-10} heart_workers=${HEART_WORKERS:-14}
source "$(dirname "${BASH_SOURCE[0]}")/gpu_machine.sh"
export OMP_NUM_THREADS=1
left() { echo $((seconds - $(now) - $1)); } # seconds until $1 before the end
cloning=${CLONING:-1} books=${BOOKS:-8} margin=${MARGIN:-25} # seconds at the end of a part, to write its files

if [ "$part" = check ]; then
  export WORK="$carry/work" OUT="$carry/out" MARGIN=4 KEEP_S=2 CODEC=8 SPEAKERS=3 ENCODER=5 READ=10 MORE_BEFORE_END=10
  export FIRST_SHARDS=1 READERS=2 HEART_WORKERS=2 MORE_WORKERS=2
  "$python" -m recipes.mini_voice.synthetic_inputs --out "$carry/files" $smoke --lines "${LINES_EACH:-24}" || exit 1
  for one in codec decoder talker; do
    bash "${BASH_SOURCE[0]}" $one "$carry/files" "$seconds" $smoke || exit 1
  done
  exit
fi

mkdir -p "$work"/{shards,known,codec,all,speakers,encoder,talker} "$out"
rm -rf "$work/tree.$part" && mkdir "$work/tree.$part"
cp -r src recipes "$work/tree.$part" && cd "$work/tree.$part" || exit 2 # the checkout may be replaced meanwhile
gunzip -c "$carry/lines.txt.gz" > "$work/lines.txt"
[ -f "$carry/rare.txt.gz" ] && gunzip -c "$carry/rare.txt.gz" > "$work/rare.txt"
speakers='["heart", "michael"]' by_kokoro=(1) # indices of the speakers that Kokoro reads
[ "$cloning" = 0 ] || { speakers='["heart", "michael", "training_voices"]' by_kokoro=(1 2); }
common=(--set "data.speakers=$speakers" --set "codec.num_quantizers=$books"
  --set "data.max_lines=0" --set "data.num_lines_other=${OTHERS:-9000}"
  --set "data.lines=\"$work/lines.txt\"" --set "data.rare=\"$work/rare.txt\""
  --set "data.shards=\"$work/shards\"" --set "data.teacher=\"$carry/hibari\""
  --set "data.model=\"$carry/hibari/hibari/assets/hibari_durations.onnx\""
  --set "data.kokoro=\"$carry/kokoro/kokoro_durations.onnx\"" --set "data.styles=\"$carry/kokoro\""
  --set "data.voices=\"$carry/kokoro/voices.npz\"" --set "train_speakers.network=\"$carry/eres2net\""
  --set "train_gan.codes=\"$work/codec\"" --set "train_gan.state=\"$work/codec/state.pt\""
  --set train_talker.num_samples=0)
if [ "$cloning" != 0 ]; then
  common+=(--set "train_talker.speakers=\"$work/speakers/speakers.npz\"")
  # ERes2Net's vectors as a loss. At the weights its gradient is about 14 times that of the mel loss.
  [ -d "$carry/eres2net" ] && common+=(--set "train_codec.speaker_weight=${SPEAKER_WEIGHT:-0.05}"
    --set "train_gan.speaker_weight=${SPEAKER_SHARE:-0.3}")
fi
[ -n "$smoke" ] && common+=(--smoke)
# The codec loses most words at the start of an utterance.
[ -n "$smoke" ] || common+=(--set train_codec.num_starts=16)
[ -n "${NO_GRAPH:-}" ] && common+=(--no-graph)
for item in ${SETS:-}; do common+=(--set "$item"); done
stage() { # name, time limit in seconds, options
  timeout -k 5 $(($2 > 10 ? $2 : 10)) "$python" -m "recipes.mini_voice.$1" "${common[@]}" "${@:3}"
}

import_known() { # codec, discriminators and talker of the shipped voice, as far as they are here
  cp -n "$carry"/{encoder,decoder,discriminators,listener,talker_a,talker_b}.safetensors "$work/known/" 2> /dev/null
  [ -f "$work/known/encoder.safetensors" ]
}

from_carry() { # what earlier parts wrote, on a new machine
  for name in encoder decoder; do
    [ -f "$work/codec/$name.safetensors" ] || cp "$carry/made/$name.safetensors" "$work/codec/"
  done
  for name in discriminators listener; do
    [ -f "$work/codec/$name.safetensors" ] || cp "$carry/made/$name.safetensors" "$work/codec/" 2> /dev/null ||
      cp "$work/known/$name.safetensors" "$work/codec/"
  done
  for name in codes_a codes_b; do
    [ -f "$work/codec/$name.npy" ] || cp "$carry/made/$name.npy" "$work/codec/"
  done
  [ -f "$work/codec/utterances.npz" ] || tar xzf "$carry/made/codec.tgz" -C "$work"
  [ "$part" != talker ] || [ -f "$work/codec/leads.npy" ] || # after codec.tgz: newer
    tar xzf "$carry/made/decoder.tgz" -C "$work"
}

read_heart() { # on the cores that nothing else uses; in its own session, so that it outlives the call
  [ -f "$work/read0.pid" ] && kill -0 "$(cat "$work/read0.pid")" 2> /dev/null && return
  setsid nohup nice -n 15 timeout "${READ_HEART:-600}" "$python" -m recipes.mini_voice.synthesize "${common[@]}" \
    --set "data.num_workers=$heart_workers" --only 0 > "$work/read0.log" 2>&1 < /dev/null &
  echo $! > "$work/read0.pid"
}

shards() { grep -c "^shard" "$work/read$1.log"; } # of a speaker, so far

has_first_shards() { # of every speaker of Kokoro: enough of them, or all
  for speaker in "${by_kokoro[@]}"; do
    [ "$(shards $speaker)" -ge "${FIRST_SHARDS:-16}" ] || grep -q "^synthesis" "$work/read$speaker.log" || return 1
  done
}

kokoro_fails() {
  for speaker in "${by_kokoro[@]}"; do
    [ "$(shards $speaker)" = 0 ] && return
    grep -q "without the GPU" "$work/read$speaker.log" && return
  done
  return 1
}

synthesize() { # for $1 seconds beside the training; existing shards are kept
  [ -f "$work/shards/read" ] && return
  say "synthesis"
  rm -f "$work"/shards/stop*
  read_heart
  for speaker in "${by_kokoro[@]}"; do touch "$work/read$speaker.log"; done
  local workers training
  for speaker in "${by_kokoro[@]}"; do # two processes for the first one if there is another
    workers=$readers
    [ $speaker = "${by_kokoro[-1]}" ] || workers=2
    stage synthesize "$(left 0)" --set "data.num_workers=$workers" --only $speaker > "$work/read$speaker.log" 2>&1 &
    training=$!
  done
  for _ in $(seq "${FIRST_SHARDS_S:-60}"); do
    has_first_shards && break
    sleep 1
  done
  if kokoro_fails; then
    say "Kokoro does not read:"
    for speaker in "${by_kokoro[@]}"; do tail -n 15 "$work/read$speaker.log"; done
    touch "$work/shards/stop"
    kill $(jobs -p)
    exit 3
  fi
  (
    for _ in $(seq "$1"); do
      kill -0 $training 2> /dev/null || break
      sleep 1
    done
    touch "${by_kokoro[@]/#/$work/shards/stop.}" "$work/shards/read"
  ) &
}

train_codec_part() {
  import_known || return 1
  share_gpu "$work"
  synthesize "${READ:-120}"
  say "codec of all speakers"
  stage train_all_codec "$(left 0)" --as-read --wait 5 --codec-only --resume "$work/known" --out "$work/codec" \
    --codec-seconds "${CODEC:-$(left $((margin + 25)))}" 2>&1 | tee "$work/codec.log" | grep -v "MiB$" | tail -n 12
  [ -f "$work/codec/utterances.npz" ] || { tail -n 30 "$work/codec.log"; return 1; }
  for speaker in 0 "${by_kokoro[@]}"; do say "$(shards $speaker) shards of speaker $speaker"; done
  cp "$work"/codec/{encoder,decoder}.safetensors "$work"/codec/codes_?.npy "$out/"
  tar czf "$out/codec.tgz" -C "$work" codec/{utterances.npz,log.jsonl}
}

start_gan() { # for $1 seconds, in its own session, so that it outlives the call
  rm -rf "$work/codec/kept" "$work/mean"
  setsid nohup timeout -k 5 $(($1 + 30)) "$python" -m recipes.mini_voice.train_gan "${common[@]}" --as-read \
    --resume "$work/codec" --out "$work/codec" --keep-every "${KEEP_S:-60}" --until "$1" \
    > "$work/gan.log" 2>&1 < /dev/null &
  echo $! > "$work/gan.pid"
}

gan_runs() { [ -f "$work/gan.pid" ] && kill -0 "$(cat "$work/gan.pid")" 2> /dev/null; }

wait_for_gan() {
  while gan_runs && [ "$(left 10)" -gt 0 ]; do sleep 0.2; done
}

average_kept() { # the last decoder and three of the minutes before
  local kept=("$work"/codec/kept/*)
  [ ${#kept[@]} -ge 4 ] || { echo "no mean of ${#kept[@]} decoders"; return; }
  stage average_decoders 30 "$work/codec" "${kept[@]: -3}" --out "$work/mean" &&
    mkdir -p "$out/mean" && cp "$work/mean/decoder.safetensors" "$out/mean/"
}

write_decoder() { # the decoder as it is now
  grep -v "MiB$" "$work/gan.log" | tail -n 6
  average_kept > "$work/mean.log" 2>&1 || tail -n 5 "$work/mean.log"
  cp "$work"/codec/{decoder,discriminators,listener}.safetensors "$out/"
}

train_talker() { # codes in $1, from the talker in $2, until $3 seconds before the end; further options
  rm -f "$work"/talker/{stop,done}
  stage train_talker "$(left 0)" --set "train_talker.codes=\"$1\"" --set "train_talker.lr=${LR:-1e-3}" \
    --resume "$2" --out "$work/talker" --until "$(left "$3")" "${@:4}"
}

begin_talker() { # with the codes that there are, when the processes have ended
  for process in "$@"; do
    while kill -0 "$process" 2> /dev/null; do sleep 0.2; done
  done
  [ "$cloning" = 0 ] || [ -f "$work/speakers/speakers.npz" ] || return
  [ "$(left $((2 * margin)))" -gt 5 ] || return
  # Its learning rate stays high, because the next part continues.
  train_talker "$work/codec" "$work/known" "$margin" --set train_talker.final_lr=0.3
}

train_decoder_part() {
  import_known || return 1
  from_carry
  share_gpu "$work"
  synthesize "${READ:-120}"
  [ -f "$work/read0.pid" ] && kill "$(cat "$work/read0.pid")" 2> /dev/null # the rest is read by more_codes
  say "leads, speaker encoder, codes of further lines and talker, beside the decoder"
  start_gan "${GAN:-$(left $margin)}"
  stage leads "$(left 40)" --resume "$work/codec" --out "$work/codec" > "$work/leads.log" 2>&1 &
  local beside=($!) talker=
  if [ "$cloning" != 0 ]; then
    local from=() # the encoder of an earlier run
    [ -f "$carry/speaker_encoder.safetensors" ] && from=(--resume "$carry")
    stage train_speakers "$(left 40)" --seconds "${SPEAKERS:-120}" "${from[@]}" --out "$work/speakers" > "$work/speakers.log" 2>&1 &
    beside+=($!)
  fi
  if [ "${EARLY_TALKER:-1}" != 0 ]; then
    begin_talker "${beside[@]}" > "$work/talker.log" 2>&1 &
    talker=$!
  fi
  nice -n 10 timeout -k 5 $(($(left 5) > 10 ? $(left 5) : 10)) "$python" -m recipes.mini_voice.more_codes \
    "${common[@]}" --set "data.num_workers=${MORE_WORKERS:-12}" --resume "$work/codec" --out "$work/all" \
    --seconds "$(left "${MORE_BEFORE_END:-60}")" > "$work/more.log" 2>&1 &
  beside+=($! $talker)
  local shown=4
  for process in "${beside[@]}"; do wait $process || shown=20; done
  for name in leads speakers more talker; do
    [ -f "$work/$name.log" ] && say "$name" && grep -v "MiB$" "$work/$name.log" | tail -n $shown
  done
  [ -n "${GAN:-}" ] || wait_for_gan
  write_decoder
  cp "$work"/talker/talker_?.safetensors "$out/" 2> /dev/null
  local files=(codec/{leads.npy,log.jsonl})
  [ "$cloning" = 0 ] || { cp "$work/speakers/speaker_encoder.safetensors" "$out/"; files+=(speakers/{speakers.npz,speakers.jsonl}); }
  tar czf "$out/decoder.tgz" -C "$work" "${files[@]}"
}

train_encoder() { # for ENCODER seconds, less the time that reading the audio and judging may take
  local wanted=${ENCODER:-300} most # `left` reads `seconds`
  [ "$wanted" -gt 0 ] || return 0
  most=$(left $((4 * margin)))
  [ "$most" -ge 5 ] || { echo "no time for the encoder"; return 1; }
  stage train_encoder "$(left 5)" --seconds $((wanted < most ? wanted : most)) \
    --resume "$work/codec" --out "$work/encoder"
}

train_talker_part() {
  import_known || return 1
  from_carry
  local from=$work/known codes=$work/codec
  # Of the part before, or of an earlier call that was interrupted.
  cp -n "$carry"/made/talker_{a,b}.safetensors "$work/talker/" 2> /dev/null
  [ -f "$work/talker/talker_b.safetensors" ] && from=$work/talker
  [ -f "$work/all/utterances.npz" ] && codes=$work/all && cp "$work/codec/leads.npy" "$work/all/"
  cp -n "$carry/made/codec_encoder.safetensors" "$work/encoder/" 2> /dev/null # of an earlier call
  share_gpu "$work"
  if gan_runs; then
    say "the decoder is still trained"
  elif [ -f "$work/gan.log" ] && ! grep -q "^stage=done" "$work/gan.log"; then
    say "the training of the decoder was ended; it continues"
    start_gan "$(left $margin)"
  fi
  say "talker, codes in $codes; beside it the encoder"
  train_encoder > "$work/encoder.log" 2>&1 &
  local encoder=$!
  (while sleep 60; do cp "$work"/talker/talker_?.safetensors "$work"/encoder/codec_encoder.safetensors "$out/"; done) > /dev/null 2>&1 & # should the call be cut off
  local copying=$!
  train_talker "$codes" "$from" "$margin" 2>&1 | tee "$work/talker.log" | grep -v "MiB$" | tail -n 8
  kill $copying
  local status=0 shown=2
  cp "$work"/talker/talker_?.safetensors "$out/" || { tail -n 30 "$work/talker.log"; status=1; }
  wait $encoder || shown=20
  tail -n $shown "$work/encoder.log"
  cp "$work/encoder/codec_encoder.safetensors" "$out/" || say "the encoder was not trained"
  wait_for_gan
  [ ! -f "$work/gan.log" ] || write_decoder
  tar czf "$out/talker.tgz" -C "$work" talker/log.jsonl encoder.log
  return $status
}

case $part in
  read) read_heart ;;
  codec | decoder | talker) "train_${part}_part" || exit 1 ;;
  *) echo "unknown part: $part" >&2 && exit 2 ;;
esac
say "done"
ls -l "$out"
