"""Effect of quantized weights: KL and top-1 agreement of logits, and quality of speech.

    python benchmarks/quantization.py benchmarks/texts/hard.txt --first 41 \
        --out build/quantization --weights int8 int4 \
        --json benchmarks/results/quantization-mini.json
    python benchmarks/quantization.py --shape 0.6B-CustomVoice --weights int8 int4 \
        --json benchmarks/results/quantization-0.6B.json

Logits are teacher-forced on codes of the full weights, in float32.
Integer matrices are multiplied with activations in int8, as the kernels do. Then all weights speak
the same lines with the same seeds, and the judges of benchmarks/quality.py rate them. An
interrupted run continues. With `--shape`, the weights are random, in released shapes. Their
logits have the entropy of trained ones, but errors accumulate differently.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from intervals import interval
from quality import (
    MANIFEST,
    VERDICTS,
    Row,
    append_row,
    count,
    read_rows,
    speak,
    verdicts,
)
from quality_figures import summarise
from report import write_report
from shapes import load_configs, random_module
from torch import Tensor

from vivace import TTS
from vivace.backends.eager import EagerBackend
from vivace.cli.bench.machine import machine
from vivace.model.cache import attend_causally
from vivace.model.config_file import parse_model_config
from vivace.model.layers import fuse
from vivace.model.quantized import GROUP, QuantizedLinear, dequantize, round_activations
from vivace.model.quantized_layers import build_quantized, quantize_tensors, quantized_layers
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

FULL = "full"
NUM_RESAMPLES = 10_000
NUM_ROWS = 64  # of a prompt with random weights
LOGIT_SCALE = 3.0  # standard deviation of random logits: their entropy is about 3.5 nats
CPU = torch.device("cpu")
Spoken = list[tuple[Prompt, Tensor]]  # prompts, and the codes [frames, codebooks] that follow


def main() -> None:
    arguments = parse_arguments()
    report: dict[str, Any] = {"benchmark": "quantization", "machine": machine()}
    if arguments.shape:
        write(arguments, report | {"shape": arguments.shape, "logits": compare_random(arguments)})
        return
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()[arguments.first - 1 :]
    report["logits"] = compare_logits(arguments, lines[: arguments.forced])
    write(arguments, report)
    if arguments.lines:
        arguments.out.mkdir(parents=True, exist_ok=True)
        arguments.texts = arguments.out / "texts.txt"
        arguments.texts.write_text("\n".join(lines), encoding="utf-8")
        write(arguments, report | {"speech": compare_speech(arguments)})


def write(arguments: argparse.Namespace, report: dict[str, Any]) -> None:
    write_report(arguments.json, report)
    print(json.dumps(report), flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("texts", type=Path, nargs="?", help="one text per line")
    text = "fp8, int8, int4; bfloat16 compares logits only"
    parser.add_argument("--weights", nargs="+", default=["fp8", "bfloat16"], help=text)
    parser.add_argument("--first", type=int, default=1, help="the line to begin with")
    parser.add_argument("--lines", type=int, default=60, help="number of spoken lines")
    parser.add_argument("--forced", type=int, default=12, help="lines whose logits are compared")
    parser.add_argument("--model", help="a folder or hub id; default: the embedded voice")
    parser.add_argument("--shape", help="such as 0.6B-CustomVoice, with random weights")
    parser.add_argument("--out", type=Path, help="folder of the recordings")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    if not arguments.shape and (arguments.texts is None or (arguments.lines and not arguments.out)):
        parser.error("give TEXTS and --out, or --shape")
    return arguments


# -- logits -------------------------------------------------------------------------------------


def compare_logits(arguments: argparse.Namespace, texts: list[str]) -> dict[str, Any]:
    """KL in nats from the full weights, and how often the likeliest code is the same."""
    options: dict[str, Any] = {"dtype": "float32", "backend": "eager", "device": "cpu"}
    with TTS.load(arguments.model, **options) as tts:
        spoken = [frames for text in texts for frames in make_frames(tts, text)]
        full = [forced_logits(tts.loaded.runtime.model, *each) for each in spoken]
    num_frames = sum(len(codes) for _, codes in spoken)
    report: dict[str, Any] = {"texts": len(texts), "frames": num_frames}
    for kind in arguments.weights:
        changed = {"dtype": kind} if kind == "bfloat16" else {"weights": kind}
        with TTS.load(arguments.model, **{**options, **changed}) as tts:
            model = tts.loaded.runtime.model
            round_products(model)
            report[kind] = distances(full, [forced_logits(model, *each) for each in spoken])
    return report


def compare_random(arguments: argparse.Namespace) -> dict[str, Any]:
    """The same with random weights and codes: one prompt and its frames."""
    torch.manual_seed(0)
    raw, _ = load_configs(arguments.shape)
    config = parse_model_config(raw)
    plain = random_module(Qwen3TTS, config, CPU, torch.float32)
    sharpen(plain)
    talker = config.talker_config
    size = (NUM_ROWS, talker.num_code_groups)
    codes = torch.randint(0, talker.code_predictor_config.vocab_size, size)
    rows = torch.randn(1, NUM_ROWS, talker.hidden_size)
    full = [logits_of_rows(plain, rows, codes)]
    tensors = plain.state_dict()
    report: dict[str, Any] = {"frames": NUM_ROWS}
    for kind in arguments.weights:
        with torch.device("meta"):
            model = build_quantized(config, kind)
        model.load_state_dict(dict(quantize_tensors(model, tensors.__getitem__)), assign=True)
        fuse(model.eval())
        round_products(model)
        report[kind] = distances(full, [logits_of_rows(model, rows, codes)])
    return report


@torch.inference_mode()
def sharpen(model: Qwen3TTS) -> None:
    """Scale the heads, so that some codes are much likelier than the others."""
    for name, tensor in model.state_dict().items():
        if "head" in name:
            tensor *= LOGIT_SCALE


def round_products(model: Qwen3TTS) -> None:
    """Compute quantized layers with activations in int8, as the kernels do."""
    for _, layer in quantized_layers(model):
        layer.use(RoundedProduct(layer.linear), max_rows=None)


class RoundedProduct:
    """`quantized.multiply` in float32: the same numbers up to rounding, many times as fast."""

    def __init__(self, linear: QuantizedLinear) -> None:
        self._weight = dequantize(linear)

    def __call__(self, rows: Tensor) -> Tensor:
        missing = -rows.shape[1] % GROUP
        codes, scale = round_activations(F.pad(rows, (0, missing)))
        rounded = (codes * scale[..., None]).flatten(1)[:, : rows.shape[1]]
        return F.linear(rounded, self._weight)


def make_frames(tts: TTS, text: str) -> Spoken:
    """The prompts of a text's utterances, and the codes of the speech."""
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
    talker, num_frames = model.talker, len(codes)
    texts = [*prompt.trailing_ids, *[prompt.pad_id] * num_frames][: num_frames - 1]
    speaker = None if prompt.speaker is None else torch.from_numpy(prompt.speaker)
    rows = talker.rows(
        torch.tensor([*prompt.text_ids, *texts]),
        torch.cat((torch.from_numpy(prompt.codes), codes[:-1])),
        speaker,
    )[None]
    return logits_of_rows(model, rows, codes)


@torch.inference_mode()
def logits_of_rows(model: Qwen3TTS, rows: Tensor, codes: Tensor) -> list[Tensor]:
    """The talker's input rows [1, T, hidden], whose last ones are those of the frames."""
    talker, predictor = model.talker, model.talker.code_predictor
    states = talker(rows, talker.rope.span(0, rows.shape[1], rows), attend_causally)[0]
    hidden = states[-len(codes) :]  # [frames, hidden]
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
        "same_likeliest_percent_by_codebook": [round(100 * each, 1) for each in agreed],
    }


# -- speech -------------------------------------------------------------------------------------


def compare_speech(arguments: argparse.Namespace) -> dict[str, Any]:
    full = judged(arguments, FULL)
    report: dict[str, Any] = {FULL: summarise(full)}
    for weights in (each for each in arguments.weights if each != "bfloat16"):
        rows = judged(arguments, weights)
        report[weights] = summarise(rows)
        report[f"{weights} less full, 95 % of resampled lines"] = paired_intervals(full, rows)
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
    rows = sorted(read_rows(folder / VERDICTS), key=lambda row: int(row["line"]))
    return [count(spoken[row["line"]] | row) for row in rows]


def paired_intervals(full: list[Row], other: list[Row]) -> dict[str, list[float]]:
    """Bootstrap intervals of the differences in word errors (percent) and DistillMOS."""
    errors = np.array([[row["errors"] for row in rows] for rows in (full, other)])
    words = np.array([row["words"] for row in full])
    mos = np.array([[row["mos"] for row in rows] for rows in (full, other)])
    drawn = np.random.default_rng(0).integers(0, len(full), (NUM_RESAMPLES, len(full)))
    wer = 100 * (errors[1] - errors[0])[drawn].sum(1) / words[drawn].sum(1)
    spans = {"wer_percent": wer, "distillmos": (mos[1] - mos[0])[drawn].mean(1)}
    return {name: interval(values, digits=3) for name, values in spans.items()}


if __name__ == "__main__":
    main()
