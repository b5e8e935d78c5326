#!/usr/bin/env bash
# Packs what `train_many.sh` needs into three uploads for a machine that takes 64 MiB a call.
#
#   recipes/mini_voice/pack_many.sh BUILD CORPUS SHARED OUT [MADE]   # OUT/1, OUT/2, OUT/3: at most 62 MB each
#   recipes/mini_voice/pack_many.sh unpack OUT CARRY [N]             # on that machine, after upload N (3)
#
# BUILD holds hibari/ (with hibari_durations.onnx), kokoro/ (kokoro_durations.safetensors of
# `convert_graph`, michael.bin, voices.npz of `voices`) and eres2net/ (of `eres2net`). CORPUS holds
# dev.txt and train.txt, SHARED encoder, discriminators and listener. Decoder and talker are those of
# the shipped voice. With MADE, the files of an earlier run, all these weights come from there, and
# its speaker encoder is continued. Upload 1 is for part `read`, 2 for `codec`, 3 for `decoder` and `talker`.
set -euo pipefail
if [ "$1" = unpack ]; then
  from=$(realpath "$2") carry=$(realpath -m "$3") last=${4:-3}
  mkdir -p "$carry/kokoro"
  if [ ! -d "$carry/hibari" ]; then
    tar xzf "$from/1/hibari.tgz" -C "$carry"
    cp "$from/1/lines.txt.gz" "$carry/"
  fi
  if [ "$last" -ge 2 ] && [ ! -f "$carry/encoder.safetensors" ]; then
    cat "$from"/[12]/kokoro.xz.? | python3 -c "import lzma, shutil, sys; \
      shutil.copyfileobj(lzma.open(sys.stdin.buffer), open(sys.argv[1], 'wb'))" \
      "$carry/kokoro/kokoro_durations.safetensors"
    cp "$from"/2/{michael.bin,voices.npz} "$carry/kokoro/"
    cp -r "$from"/2/*.safetensors "$from/2/eres2net" "$carry/"
    (cd "$carry" && sha256sum -c --quiet "$from/2/sums.txt")
  fi
  if [ "$last" -ge 3 ]; then
    cp "$from"/3/rare.txt.gz "$from"/3/*.safetensors "$carry/"
    if [ -d "$from/made" ]; then cp -r "$from/made" "$carry/"; fi
    (cd "$carry" && sha256sum -c --quiet "$from/3/sums.txt")
  fi
  echo "uploads to $last: all files are complete"
  exit
fi
build=$(realpath "$1") corpus=$(realpath "$2") shared=$(realpath "${5:-$3}") out=$(realpath -m "$4") made=${5:+$(realpath "$5")}
python=${PYTHON:-python3} codec_lines=${CODEC_LINES:-30000}
export PYTHONPATH=$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$out"/{1,2,3}
[ -f "$build/kokoro.xz" ] || xz -T0 -3 -k -c "$build/kokoro/kokoro_durations.safetensors" > "$build/kokoro.xz"
head -c 49500000 "$build/kokoro.xz" > "$out/1/kokoro.xz.a"
tail -c +49500001 "$build/kokoro.xz" > "$out/2/kokoro.xz.b"
tar czhf "$out/1/hibari.tgz" -C "$build" --exclude=__pycache__ --exclude=hibari.onnx --exclude='*gb*' hibari
cp "$shared"/{encoder,listener}.safetensors "$build"/kokoro/{michael.bin,voices.npz} "$out/2/"
cp -rL "$build/eres2net" "$out/2/"
cp "$shared/discriminators.safetensors" "$out/3/"
work=$(mktemp -d)
mkdir "$work/build"
cp "$corpus"/{dev,train}.txt "$work/build/"
ln -s "$build/hibari" "$work/build/hibari"
(cd "$work" && "$python" -m recipes.mini_voice.lines && "$python" -m recipes.mini_voice.rare_lines \
  --codec-lines "$codec_lines")
gzip -9nc "$work/build/lines.txt" > "$out/1/lines.txt.gz"
gzip -9nc "$work/build/rare.txt" > "$out/3/rare.txt.gz"
if [ -n "$made" ]; then
  cp "$made/decoder.safetensors" "$out/2/"
  cp "$made"/{talker_a,talker_b,speaker_encoder}.safetensors "$out/3/"
else
  "$python" -c "
from pathlib import Path
from recipes.mini_voice.import_asset import ASSET, import_asset
import_asset(ASSET, Path('$work'))"
  mv "$work/decoder.safetensors" "$out/2/"
  mv "$work"/talker_?.safetensors "$out/3/"
fi
rm -r "$work"
(cd "$build" && sha256sum kokoro/{kokoro_durations.safetensors,michael.bin,voices.npz} \
  hibari/hibari/assets/hibari_durations.onnx) > "$out/2/sums.txt"
(cd "$out/2" && sha256sum {encoder,decoder,listener}.safetensors eres2net/eres2net.safetensors) >> "$out/2/sums.txt"
(cd "$out/3" && sha256sum rare.txt.gz ./*.safetensors) > "$out/3/sums.txt"
du -sb "$out"/?
