"""What weights in fp8 do to a voice: KL of its logits, and word errors and naturalness, in pairs.

    python benchmarks/fp8.py benchmarks/texts/hard.txt --first 41 --out build/fp8 \
        --json benchmarks/results/fp8-mini.json

Logits are teacher-forced on codes of the full weights, in float32, with bfloat16 beside them as a
measure of what is small. Then both say the same lines with the same seeds, and the judges of
benchmarks/quality.py hear both. It goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quality import (
    MANIFEST,
    VERDICTS,
    Row,
    append_row,
    count,
    read_rows,
    speak,
    summarise,
    verdicts,
)
from torch import Tensor

from vivace import TTS
from vivace.backends.eager import EagerBackend
from vivace.cli.bench.machine import machine
from vivace.model.cache import attend_causally
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

ARMS = ("full", "fp8")
NUM_RESAMPLES = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("texts", type=Path, help="a text a line")
    parser.add_argument("--first", type=int, default=1, help="the line to begin with")
    parser.add_argument("--lines", type=int, default=60, help="how many are spoken")
    parser.add_argument(
        "--forced", type=int, default=12, help="how many have their logits compared"
    )
    parser.add_argument("--model", help="a folder or hub id; default: the embedded voice")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()[arguments.first - 1 :]
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.texts = arguments.out / "texts.txt"
    arguments.texts.write_text("\n".join(lines), encoding="utf-8")
    report = {
        "benchmark": "fp8",
        "machine": machine(),
        "logits": compare_logits(arguments.model, lines[: arguments.forced]),
    }
    print(json.dumps(report["logits"]), flush=True)
    report["speech"] = compare_speech(arguments)
    print(json.dumps(report["speech"]))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(report, indent=1) + "\n")


# -- logits -------------------------------------------------------------------------------------


def compare_logits(name: str | None, texts: list[str]) -> dict[str, Any]:
    """KL in nats from the full weights, and how often the likeliest code is the same."""
    kinds: dict[str, dict[str, Any]] = {
        "fp8": {"weights": "fp8"},
        "bfloat16": {"dtype": "bfloat16"},
    }
    with TTS.load(name, dtype="float32", backend="eager", device="cpu") as tts:
        spoken = [frames for text in texts for frames in make_frames(tts, text)]
        full = [forced_logits(tts.loaded.parts[0], *each) for each in spoken]
    report: dict[str, Any] = {
        "texts": len(texts),
        "frames": sum(len(codes) for _, codes in spoken),
    }
    for kind, options in kinds.items():
        options = {"dtype": "float32", "backend": "eager", "device": "cpu", **options}
        with TTS.load(name, **options) as tts:
            other = [forced_logits(tts.loaded.parts[0], *each) for each in spoken]
        report[kind] = distances(full, other)
    return report


def make_frames(tts: TTS, text: str) -> list[tuple[Prompt, Tensor]]:
    """The prompts of a text's utterances, and the codes that they are answered with."""
    backend = tts.engine.backend
    assert isinstance(backend, EagerBackend)
    admitted: list[tuple[Prompt, SamplingParams]] = []
    admit = backend.admit

    def note(prompt: Prompt, sampling: SamplingParams) -> int:
        admitted.append((prompt, sampling))
        return admit(prompt, sampling)

    backend.admit = note  # type: ignore[method-assign]
    tts.speak(text, seed=0)
    backend.admit = admit  # type: ignore[method-assign]
    found = []
    for prompt, sampling in admitted:
        slot = admit(prompt, sampling)
        found.append((prompt, torch.from_numpy(backend.step([slot], sampling.max_frames).of(0))))
        backend.release(slot)
    return found


@torch.inference_mode()
def forced_logits(model: Qwen3TTS, prompt: Prompt, codes: Tensor) -> list[Tensor]:
    """Of every codebook: log-probabilities [frames, codes], each frame after the true ones."""
    talker, predictor = model.talker, model.talker.code_predictor
    num_frames = len(codes)
    texts = [*prompt.trailing_ids, *[prompt.pad_id] * num_frames][: num_frames - 1]
    speaker = None if prompt.speaker is None else torch.from_numpy(prompt.speaker)
    rows = talker.rows(
        torch.tensor([*prompt.text_ids, *texts]),
        torch.cat((torch.from_numpy(prompt.codes), codes[:-1])),
        speaker,
    )[None]
    states = talker(rows, talker.rope.span(0, rows.shape[1], rows), attend_causally)[0]
    hidden = states[-num_frames:]  # [frames, hidden]
    tables = talker.code_tables
    vectors = [table(codes[:, book]) for book, table in enumerate(tables[:-1])]
    out = predictor(torch.stack([hidden, *vectors], dim=1), 0, attend_causally)
    logits = [talker.codec_head(hidden)]
    logits += [head(out[:, book]) for book, head in enumerate(predictor.lm_head, start=1)]
    return [each.float().log_softmax(-1) for each in logits]


def distances(full: list[list[Tensor]], other: list[list[Tensor]]) -> dict[str, Any]:
    """By codebook, over all frames: the first is the talker's, the others are the predictor's."""
    books = [
        (torch.cat(expected), torch.cat(found))
        for expected, found in zip(zip(*full, strict=True), zip(*other, strict=True), strict=True)
    ]
    kl = [float((p.exp() * (p - q)).sum(-1).mean()) for p, q in books]
    agreed = [float((p.argmax(-1) == q.argmax(-1)).float().mean()) for p, q in books]
    return {
        "kl_talker": round(kl[0], 5),
        "kl_predictor": round(float(np.mean(kl[1:])), 5),
        "kl_by_codebook": [round(each, 5) for each in kl],
        "same_likeliest_talker_percent": round(100 * agreed[0], 1),
        "same_likeliest_predictor_percent": round(100 * float(np.mean(agreed[1:])), 1),
    }


# -- speech -------------------------------------------------------------------------------------


def compare_speech(arguments: argparse.Namespace) -> dict[str, Any]:
    rows = {arm: judged(arguments, arm) for arm in ARMS}
    report: dict[str, Any] = {arm: summarise(rows[arm]) for arm in ARMS}
    report["fp8 less full, 95 % of resampled lines"] = paired_intervals(rows["full"], rows["fp8"])
    return report


def judged(arguments: argparse.Namespace, weights: str) -> list[Row]:
    folder = arguments.out / weights
    settings = argparse.Namespace(
        texts=arguments.texts, out=folder, folder=folder, limit=arguments.lines, device="cpu",
        model=arguments.model, weights=weights, voice=None, layout=None, live=None,
        temperature=None, teacher=None, reference=None, threads=1,
    )  # fmt: skip
    speak(settings)
    done = {row["line"] for row in read_rows(folder / VERDICTS)}
    spoken = {row["line"]: row for row in read_rows(folder / MANIFEST)}
    for verdict in verdicts(settings, [row for line, row in spoken.items() if line not in done]):
        append_row(folder / VERDICTS, verdict)
    heard = sorted(read_rows(folder / VERDICTS), key=lambda row: int(row["line"]))
    return [count(spoken[row["line"]] | row) for row in heard]


def paired_intervals(full: list[Row], fp8: list[Row]) -> dict[str, list[float]]:
    """What word errors, in percent, and DistillMOS differ by when lines are drawn again."""
    errors = np.array([[row["errors"] for row in rows] for rows in (full, fp8)])
    words = np.array([row["words"] for row in full])
    mos = np.array([[row["mos"] for row in rows] for rows in (full, fp8)])
    drawn = np.random.default_rng(0).integers(0, len(full), (NUM_RESAMPLES, len(full)))
    wer = 100 * (errors[1] - errors[0])[drawn].sum(1) / words[drawn].sum(1)
    spans = {"wer_percent": wer, "distillmos": (mos[1] - mos[0])[drawn].mean(1)}
    return {
        name: [round(float(x), 3) for x in np.percentile(values, (2.5, 97.5))]
        for name, values in spans.items()
    }


if __name__ == "__main__":
    main()
