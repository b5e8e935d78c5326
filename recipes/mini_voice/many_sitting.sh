#!/usr/bin/env bash
# Trains a voice of many speakers on a GPU machine, in three parts of one call each.
#
#   recipes/mini_voice/many_sitting.sh codec|decoder|talker CARRY SECONDS [--smoke]
#
# codec:   Kokoro reads on the GPU, hibari on the cores; then encoder, codebooks and decoder of all
#          speakers, from the shipped codec, and the codes of all lines.
# decoder: the decoder with discriminators, and beside it the speaker encoder.
# talker:  talker and predictor of the presets and of speaker vectors, from the shipped talker.
#
# CARRY holds hibari/, kokoro/ (kokoro_durations.safetensors or .onnx, michael.bin, voices.npz),
# eres2net/, lines.txt.gz, and of shared/mini_voice encoder, discriminators and listener. A part finds
# what earlier parts made in $WORK, while the machine is the same; otherwise CARRY must hold the files
# that they wrote to $OUT. SECONDS is the time of the part. Checkpoints are written every minute;
# the same call continues from them.
set -uo pipefail
part=$1 carry=$(realpath "$2") seconds=$3 smoke=${4:-}
out=$(realpath -m "${OUT:-build/many/out}") work=$(realpath -m "${WORK:-/tmp/mini_voice_many}")
python=${PYTHON:-python3} readers=${READERS:-10} heart_workers=${HEART_WORKERS:-4}
[[ $python == */* && $python != /* ]] && python=$PWD/$python
export PYTHONPATH=src:.${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
begun=$(date +%s)
left() { echo $((seconds - ($(date +%s) - begun) - $1)); } # seconds until $1 before the end
say() { echo "== $(($(date +%s) - begun)) s: $*"; }
books=${BOOKS:-8}

mkdir -p "$work"/{shards,known,codec,speakers,talker} "$out"
rm -rf "$work/tree" && mkdir "$work/tree"
cp -r src recipes "$work/tree" && cd "$work/tree" || exit 2 # the checkout may be replaced meanwhile
gunzip -c "$carry/lines.txt.gz" > "$work/lines.txt"
common=(--set 'data.speakers=["heart", "michael", "training_voices"]' --set "codec.num_quantizers=$books"
  --set "data.max_lines=${MAX_LINES:-30720}" --set "data.num_lines_other=${OTHERS:-9000}"
  --set "data.lines=\"$work/lines.txt\"" --set 'data.rare="none"'
  --set "data.shards=\"$work/shards\"" --set "data.teacher=\"$carry/hibari\""
  --set "data.model=\"$carry/hibari/hibari/assets/hibari_durations.onnx\""
  --set "data.kokoro=\"$carry/kokoro/kokoro_durations.onnx\"" --set "data.styles=\"$carry/kokoro\""
  --set "data.voices=\"$carry/kokoro/voices.npz\"" --set "train_speakers.network=\"$carry/eres2net\""
  --set "train_gan.codes=\"$work/codec\"" --set "train_gan.state=\"$work/codec/state.pt\""
  --set "train_talker.codes=\"$work/codec\"" --set train_talker.num_samples=0
  --set "train_talker.speakers=\"$work/speakers/speakers.npz\"")
[ -n "$smoke" ] && common+=(--smoke)
for item in ${SETS:-}; do common+=(--set "$item"); done
stage() { # name, time limit in seconds, options
  timeout -k 5 $(($2 > 10 ? $2 : 10)) "$python" -m "recipes.mini_voice.$1" "${common[@]}" "${@:3}"
}

import_known() { # the shipped decoder and talker, the shared encoder and discriminators
  [ -f "$work/known/talker_b.safetensors" ] && return
  cp "$carry"/{encoder,discriminators,listener}.safetensors "$work/known/"
  "$python" -c "
from pathlib import Path
from recipes.mini_voice.import_asset import ASSET, import_asset
import_asset(ASSET, Path('$work/known'))"
}

from_carry() { # what earlier parts wrote, on a new machine
  for name in encoder decoder discriminators; do
    [ -f "$work/codec/$name.safetensors" ] || cp "$carry/made/$name.safetensors" "$work/codec/"
  done
  for name in codes_a codes_b; do
    [ -f "$work/codec/$name.npy" ] || cp "$carry/made/$name.npy" "$work/codec/"
  done
  [ -f "$work/codec/utterances.npz" ] || tar xzf "$carry/made/codec.tgz" -C "$work"
  [ "$part" != talker ] || [ -f "$work/speakers/speakers.npz" ] || # after codec.tgz: newer
    tar xzf "$carry/made/decoder.tgz" -C "$work"
}

share_gpu() { # under MPS a dozen processes use the GPU at the same time
  command -v nvidia-cuda-mps-control > /dev/null || return
  export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
  mkdir -p "$work/mps"
  nvidia-cuda-mps-control -d
  timeout 30 "$python" -c "import torch; torch.ones(1, device='cuda')" && return
  echo quit | timeout 5 nvidia-cuda-mps-control
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

synthesize() { # for at most $1 seconds; existing shards are kept, those of heart come in later too
  [ -f "$work/shards/read" ] && return
  say "synthesis"
  stage synthesize "$(left 0)" --set "data.num_workers=$heart_workers" --only 0 > "$work/read0.log" 2>&1 &
  stage synthesize "$(left 0)" --set "data.num_workers=2" --only 1 > "$work/read1.log" 2>&1 &
  local michael=$!
  stage synthesize "$(left 0)" --set "data.num_workers=$readers" --only 2 > "$work/read2.log" 2>&1 &
  local training=$!
  for _ in $(seq "${FIRST_SHARD:-60}"); do
    grep -qE "^(shard|synthesis)" "$work/read2.log" && break
    sleep 1
  done
  if ! grep -qE "^(shard|synthesis)" "$work/read2.log" || grep -q "without the GPU" "$work"/read[12].log; then
    say "the training voices are not read:"
    tail -n 30 "$work/read2.log"
    touch "$work/shards/stop"
    kill $(jobs -p)
    exit 3
  fi
  for _ in $(seq "$1"); do
    kill -0 $training 2> /dev/null || break
    sleep 1
  done
  touch "$work"/shards/{stop.1,stop.2,read} # heart is read on, beside the training
  wait $training $michael
  say "$(grep -c "^shard" "$work/read2.log") shards of the training voices, $(grep -c "^shard" "$work/read1.log") of michael, $(grep -c "^shard" "$work/read0.log") of heart"
}

train_codec_part() {
  import_known
  share_gpu
  synthesize "${READ:-110}"
  say "codec of all speakers"
  stage train_all_codec "$(left 0)" --as-read --wait 5 --resume "$work/known" --out "$work/codec" \
    --codec-seconds "${CODEC:-$(($(left 30) * 55 / 100))}" --until "$(left 30)" 2>&1 | tee "$work/codec.log" | grep -v "MiB$" | tail -n 12
  [ -f "$work/codec/utterances.npz" ] || { tail -n 30 "$work/codec.log"; return 1; }
  cp "$work"/codec/{encoder,decoder,discriminators}.safetensors "$work"/codec/codes_?.npy "$out/"
  tar czf "$out/codec.tgz" -C "$work" codec/{listener.safetensors,utterances.npz,log.jsonl}
}

train_decoder_part() {
  import_known
  from_carry
  share_gpu
  synthesize "${READ:-110}"
  say "leads and speaker encoder, beside the decoder"
  stage leads "$(left 40)" --resume "$work/codec" --out "$work/codec" > "$work/leads.log" 2>&1 &
  local leads=$!
  stage train_speakers "$(left 40)" --seconds "${SPEAKERS:-120}" --out "$work/speakers" > "$work/speakers.log" 2>&1 &
  local speakers=$!
  stage train_gan "$(left 0)" --as-read --resume "$work/codec" --out "$work/codec" --until "$(left 30)" 2>&1 |
    tee "$work/gan.log" | grep -v "MiB$" | tail -n 8
  wait $leads || tail -n 5 "$work/leads.log"
  wait $speakers || tail -n 20 "$work/speakers.log"
  tail -n 2 "$work/speakers.log"
  cp "$work"/codec/{decoder,discriminators}.safetensors "$work/speakers/speaker_encoder.safetensors" "$out/"
  tar czf "$out/decoder.tgz" -C "$work" codec/{listener.safetensors,leads.npy,log.jsonl} \
    speakers/{speakers.npz,speakers.jsonl}
}

train_talker_part() {
  import_known
  from_carry
  local from=$work/known
  [ -f "$work/talker/talker_b.safetensors" ] && from=$work/talker # an earlier call was interrupted
  rm -f "$work"/talker/{stop,done}
  say "talker"
  stage train_talker "$(left 0)" --set "train_talker.lr=${LR:-1e-3}" --resume "$from" --out "$work/talker" \
    --until "$(left 30)" 2>&1 | tee "$work/talker.log" | grep -v "MiB$" | tail -n 8
  cp "$work"/talker/talker_?.safetensors "$out/"
  tar czf "$out/talker.tgz" -C "$work" talker/log.jsonl
}

case $part in
  codec | decoder | talker) "train_${part}_part" || exit 1 ;;
  *) echo "unknown part: $part" >&2 && exit 2 ;;
esac
say "done"
ls -l "$out"
