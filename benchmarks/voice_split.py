"""Splits the word errors of the embedded voice between teacher, codec, predictor and talker.

    PYTHONPATH=src:. python benchmarks/voice_split.py make ../shared/corpus/dev.txt \\
        --teacher build/hibari --codec build/checkpoints --out build/split --limit 300
    PYTHONPATH=src:. python benchmarks/voice_split.py judge build/split --json split.json \\
        --parts teacher codec voice

Every line is recorded six times:

- `teacher`: by the teacher, trimmed as in training.
- `codec`: the teacher's audio through the mel encoder of the recipe and the shipped decoder.
- `lead`: the same with three frames of silence before the speech, which are cut off afterwards.
- `predictor`: true history and true codebook 0; the predictor samples the other codebooks.
- `forced`: true history; talker and predictor sample every codebook of the next frame.
- `voice`: by the embedded voice, with its default options.

recipes/mini_voice/README.md describes how to make the folder of the teacher (Teachers) and that of
the codec (Continue from the shipped voice: build/checkpoints). Both commands resume where they
stopped. `judge` needs the packages of benchmarks/judges.py. It reports naturalness if
`quality.py judge` rated the folders of the parts before.

`--speaker michael --kokoro build/kokoro` records `teacher` and `voice` of the second speaker. Its
encoder was not kept, so the other parts do not exist.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from intervals import draw, interval
from numpy.typing import NDArray
from quality import (
    MANIFEST,
    SAMPLE_RATE,
    VERDICTS,
    Samples,
    append_row,
    keep,
    read_rows,
    read_wav,
)
from quality_figures import LOST, fifth_of, mean_of
from report import write_report
from torch import Tensor
from words import split_errors

from recipes.mini_voice import talker_files, train_codec
from recipes.mini_voice.rows import Ids, prompt_rows
from recipes.mini_voice.settings import FRAME, load_settings
from recipes.mini_voice.speak import draw as draw_code
from recipes.mini_voice.speak import predict
from recipes.mini_voice.synthesize import Teacher
from vivace import TTS
from vivace.cli.bench.machine import machine
from vivace.model.cache import attend_causally
from vivace.model.config import NO_CODE
from vivace.model.conv import CausalState
from vivace.text.tokenizer import TextTokenizer

PARTS = ("teacher", "codec", "lead", "predictor", "forced", "voice")
STEPS = (
    ("teacher", "codec"), ("codec", "lead"), ("codec", "predictor"), ("predictor", "forced"),
    ("codec", "voice"), ("teacher", "voice"),
)  # fmt: skip
LEAD = 3 * FRAME  # samples
NUM_FIRST = 3  # words at the start that are counted separately
SPANS = ("all", "first_words", "later_words")


def main() -> None:
    arguments = parse_arguments()
    arguments.run(arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("make", help="record every line in six ways")
    command.set_defaults(run=make)
    command.add_argument("texts", type=Path, help="one text per line")
    command.add_argument("--teacher", type=Path, required=True, help="an unpacked hibari-tts wheel")
    command.add_argument("--codec", type=Path, help="encoder and decoder of heart")
    command.add_argument("--speaker", choices=("heart", "michael"), default="heart")
    command.add_argument("--kokoro", type=Path, help="kokoro_durations and michael.bin")
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--limit", type=int, help="number of lines; default: all")
    command = commands.add_parser("judge", help="recordings to figures")
    command.set_defaults(run=judge)
    command.add_argument("folder", type=Path)
    command.add_argument("--json", type=Path, required=True)
    command.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    command.add_argument("--limit", type=int, help="number of lines; default: all")
    command.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


# -- recording ----------------------------------------------------------------------------------


def make(arguments: argparse.Namespace) -> None:
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()[: arguments.limit]
    if arguments.codec and arguments.speaker != "heart":
        raise SystemExit("--codec: its encoder belongs to heart; leave it out for michael")
    codec = Codec(arguments.codec) if arguments.codec else None
    parts = PARTS if codec else ("teacher", "voice")
    done = {
        part: {row["line"] for row in read_rows(arguments.out / part / MANIFEST)} for part in parts
    }
    teacher = read_with(arguments.teacher, arguments.speaker, arguments.kokoro)
    with TTS.load(device="cpu") as tts:
        for line, text in enumerate(lines):
            missing = [part for part in parts if line not in done[part]]
            if not missing:
                continue
            audio, _ = teacher.read(text, seed=line)
            samples = audio.astype(np.float32) / np.float32(32768)
            made = codec.versions(text, samples, seed=line) if codec else {"teacher": samples}
            spoken = tts.speak(text, voice=arguments.speaker, seed=line)
            made["voice"] = spoken.samples
            for part in missing:
                reason = spoken.finish_reason if part == "voice" else "stop"
                keep(arguments.out / part, line, text, made[part], reason, None)


def read_with(folder: Path, speaker: str, kokoro: Path | None) -> Teacher:
    """The teacher of a speaker, with the settings of the recipe."""
    data = load_settings().data
    assets = folder / "hibari" / "assets"
    data.teacher, data.model = str(folder), str(assets / "hibari_durations.onnx")
    if kokoro is not None:
        data.kokoro, data.styles = str(kokoro / "kokoro_durations.onnx"), str(kokoro)
    return Teacher(data, data.speakers.index(speaker))


class Codec:
    """The shipped codec with the recipe's encoder, and the shipped talker along given codes."""

    def __init__(self, folder: Path) -> None:
        self._settings = load_settings()
        self._trainer = train_codec.build(self._settings)
        train_codec.restore(self._trainer, folder)
        self._trainer.eval()
        self._tokenizer = TextTokenizer.from_folder(Path(self._settings.tokenizer.folder))
        self._talker = talker_files.build(self._settings, self._tokenizer)
        talker_files.load(self._talker, folder)

    @torch.inference_mode()
    def versions(self, text: str, samples: Samples, seed: int) -> dict[str, Samples]:
        """The recordings of one line, without that of the voice."""
        torch.manual_seed(seed)
        codes, later = self._encode(samples), self._encode(np.pad(samples, (LEAD, 0)))
        hidden = self._states(text, codes)
        train = self._settings.train_talker
        temperature, top_k = train.temperature, train.top_k
        logits = self._talker.codec_head(hidden)[:, : self._settings.codec.codebook_size]
        first = draw_code(logits, temperature, top_k)
        frames = {
            "codec": codes,
            "predictor": predict(self._talker, hidden, codes[:, 0], temperature, top_k),
            "forced": predict(self._talker, hidden, first, temperature, top_k),
        }
        made = {name: self._decode(one) for name, one in frames.items()}
        return {"teacher": samples, "lead": self._decode(later)[LEAD:]} | made

    def _encode(self, samples: Samples) -> Tensor:
        """Codes [frames, books]."""
        return self._trainer.encode(torch.from_numpy(samples)[None])[0]

    def _states(self, text: str, codes: Tensor) -> Tensor:
        """The talker's states before each frame of `codes`: [frames, hidden]."""
        config = self._talker.config
        texts, codecs, _ = prompt_rows(
            self._tokenizer.encode(text), config, Ids.of(self._tokenizer),
            speaker=0, is_streaming=False, is_auto=False,
        )  # fmt: skip
        pad = Ids.of(self._tokenizer).pad
        ids = torch.tensor([*texts, *[pad] * len(codes)])
        rows = torch.full((len(ids), codes.shape[1]), NO_CODE)
        rows[: len(codecs), 0] = torch.tensor(codecs)
        rows[len(codecs) :] = codes
        x = talker_files.embed(self._talker, ids[None], rows[None])
        hidden = self._talker(x, self._talker.rope.span(0, len(ids), x), attend_causally)[0]
        found: Tensor = hidden[len(texts) - 1 : -1]
        return found

    def _decode(self, codes: Tensor) -> Samples:
        samples: Samples = self._trainer.decoder(codes[None], CausalState())[0].float().numpy()
        return samples


# -- judging ------------------------------------------------------------------------------------


def judge(arguments: argparse.Namespace) -> None:
    folder, parts = arguments.folder, tuple(arguments.parts)
    texts = dict(list(recorded(folder, parts).items())[: arguments.limit])
    if not texts:
        raise SystemExit(f"{folder} has no line in all parts; run `make` first")
    transcribe(folder, parts, texts, arguments.threads)
    counts = {part: error_counts(folder / part, texts) for part in parts}
    report = {
        "benchmark": "voice_split",
        "machine": machine(),
        "judges": "Whisper-base int8 (faster-whisper, beam 5)",
        "lines": len(texts),
        "words": int(counts[parts[0]][:, 0, 1].sum()),
        "first_words": NUM_FIRST,
        "parts": {
            part: summary(counts[part]) | naturalness(folder / part, texts) for part in parts
        },
        "steps": {
            f"{before} to {after}": differences(counts[before], counts[after])
            for before, after in STEPS
            if {before, after} <= set(parts)
        },
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.json, report)
    print(json.dumps(report["steps"]))


def recorded(folder: Path, parts: tuple[str, ...]) -> dict[int, str]:
    """The texts of the lines that all parts have."""
    rows = [
        {row["line"]: row["text"] for row in read_rows(folder / part / MANIFEST)} for part in parts
    ]
    return {line: rows[0][line] for line in sorted(set.intersection(*map(set, rows)))}


def transcribe(folder: Path, parts: tuple[str, ...], texts: dict[int, str], threads: int) -> None:
    """Transcribe all recordings without a verdict, line by line."""
    done = {part: {row["line"] for row in read_rows(folder / part / VERDICTS)} for part in parts}
    missing = [(line, part) for line in texts for part in parts if line not in done[part]]
    if not missing:
        return
    from judges import Recogniser

    recognise = Recogniser(threads)
    for line, part in missing:
        samples = read_wav(folder / part / f"{line:04d}.wav")
        transcript = recognise(samples, SAMPLE_RATE) if len(samples) else ""
        append_row(folder / part / VERDICTS, {"line": line, "transcript": transcript, "mos": None})


def error_counts(folder: Path, texts: dict[int, str]) -> NDArray[Any]:
    """Errors and words of every line, in all words and in both spans: [line, span, 2]."""
    transcripts = {row["line"]: row["transcript"] for row in read_rows(folder / VERDICTS)}
    found = []
    for line, text in texts.items():
        first, later = split_errors(text, transcripts[line], NUM_FIRST)
        spans = [(first.errors, first.words), (later.errors, later.words)]
        found.append([tuple(map(sum, zip(*spans, strict=True))), *spans])
    return np.array(found)


def summary(counts: NDArray[Any]) -> dict[str, Any]:
    shares = counts[:, 0, 0] / np.maximum(1, counts[:, 0, 1])
    rates = error_percent(draw(counts))  # [draw, span]
    return {
        "word_error_percent": by_span(error_percent(counts)),
        "intervals_95_percent": intervals(rates),
        "lost": int((shares > LOST).sum()),
    }


def naturalness(folder: Path, texts: dict[int, str]) -> dict[str, float | None]:
    rows = [row for row in read_rows(folder / VERDICTS) if row["line"] in texts]
    if all(row["mos"] is None for row in rows):
        return {}
    return {
        "distillmos": mean_of(rows, "mos"),
        "distillmos_5th_percentile": fifth_of(rows, "mos"),
    }


def differences(before: NDArray[Any], after: NDArray[Any]) -> dict[str, Any]:
    """Points of word errors that a step adds. The bootstrap draws the same lines for both."""
    drawn = draw(np.stack((before, after), axis=1))  # [draw, line, 2, span, count]
    points = error_percent(drawn[:, :, 1]) - error_percent(drawn[:, :, 0])
    return {
        "points": by_span(error_percent(after) - error_percent(before)),
        "intervals_95_percent": intervals(points),
    }


def error_percent(counts: NDArray[Any]) -> NDArray[np.float64]:
    """Counts [..., line, span, (errors, words)] to percent [..., span]."""
    total = counts.sum(-3)
    rates: NDArray[np.float64] = 100 * total[..., 0] / np.maximum(1, total[..., 1])
    return rates


def by_span(values: NDArray[np.float64]) -> dict[str, float]:
    return {name: round(float(value), 2) for name, value in zip(SPANS, values, strict=True)}


def intervals(drawn: NDArray[np.float64]) -> dict[str, list[float]]:
    return {name: interval(points) for name, points in zip(SPANS, drawn.T, strict=True)}


if __name__ == "__main__":
    main()
