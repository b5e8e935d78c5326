#!/usr/bin/env bash
# Packs what `many_sitting.sh` needs into three shipments for a machine that takes 64 MiB a call.
#
#   recipes/mini_voice/pack_many.sh BUILD CORPUS SHARED OUT     # OUT/1, OUT/2, OUT/3: 56, 52 and 17 MB
#   recipes/mini_voice/pack_many.sh unpack OUT CARRY            # on that machine, after the third
#
# BUILD holds hibari/ (with hibari_durations.onnx), kokoro/ (kokoro_durations.safetensors of
# `convert_graph`, michael.bin, voices.npz of `voices`) and eres2net/ (of `eres2net`). CORPUS holds
# dev.txt and train.txt, SHARED encoder, discriminators and listener.
set -euo pipefail
if [ "$1" = unpack ]; then
  from=$(realpath "$2") carry=$(realpath -m "$3")
  mkdir -p "$carry/kokoro"
  cat "$from"/[12]/kokoro.xz.? > "$carry/kokoro.xz"
  python3 -c "import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], 'wb'))" \
    "$carry/kokoro.xz" "$carry/kokoro/kokoro_durations.safetensors"
  rm "$carry/kokoro.xz"
  tar xzf "$from/1/hibari.tgz" -C "$carry"
  cp "$from"/2/*.safetensors "$carry/"
  cp -r "$from/3/eres2net" "$from/3/lines.txt.gz" "$carry/"
  cp "$from"/3/{michael.bin,voices.npz} "$carry/kokoro/"
  [ -d "$from/made" ] && cp -r "$from/made" "$carry/"
  (cd "$carry" && sha256sum -c --quiet "$from/3/sums.txt") && echo "all files are complete"
  exit
fi
build=$(realpath "$1") corpus=$(realpath "$2") shared=$(realpath "$3") out=$(realpath -m "$4")
python=${PYTHON:-python3}
mkdir -p "$out"/{1,2,3}
[ -f "$build/kokoro.xz" ] || xz -T0 -3 -k -c "$build/kokoro/kokoro_durations.safetensors" > "$build/kokoro.xz"
head -c 43000000 "$build/kokoro.xz" > "$out/1/kokoro.xz.a"
tail -c +43000001 "$build/kokoro.xz" > "$out/2/kokoro.xz.b"
tar czhf "$out/1/hibari.tgz" -C "$build" --exclude=__pycache__ --exclude=hibari.onnx --exclude='*gb*' hibari
cp "$shared"/{encoder,discriminators,listener}.safetensors "$out/2/"
cp -rL "$build/eres2net" "$build"/kokoro/{michael.bin,voices.npz} "$out/3/"
work=$(mktemp -d) root=$PWD
mkdir "$work/build"
cp "$corpus"/{dev,train}.txt "$work/build/"
(cd "$work" && PYTHONPATH=$root/src:$root "$python" -m recipes.mini_voice.lines)
gzip -n -c "$work/build/lines.txt" > "$out/3/lines.txt.gz"
rm -r "$work"
(cd "$build" && sha256sum kokoro/{kokoro_durations.safetensors,michael.bin,voices.npz} \
  eres2net/eres2net.safetensors hibari/hibari/assets/hibari_durations.onnx) > "$out/3/sums.txt"
(cd "$shared" && sha256sum {encoder,discriminators,listener}.safetensors) >> "$out/3/sums.txt"
du -sh "$out"/?
