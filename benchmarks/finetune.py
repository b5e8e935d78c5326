r"""Memory and speed of `vivace finetune` with random weights of a released shape.

    python benchmarks/finetune.py --shapes 0.6B-Base 1.7B-Base --whole --limit-gb 8 12 \
        --json benchmarks/results/finetune-h200.json

Trains a few steps on random codes with the default options: LoRA, bfloat16 on a GPU, recomputed
activations. Recordings last 3 to 12 s. `--whole` also measures a whole run: it writes a checkpoint
and recordings, encodes the recordings, trains one epoch and speaks samples. `--limit-gb` limits the
GPU memory of the process for each shape, its CUDA context included; a run that needs more fails.

`peak_gb` is PyTorch's highest allocated memory, `reserved_gb` its highest reserved memory, and
`context_gb` what CUDA needs besides. A GPU needs the sum of the last two.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from released import released_config
from shapes import random_module, write_checkpoint

from vivace.adapter import free_speaker_ids, with_speakers
from vivace.audio.encode import open_encoder
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.cli.bench.machine import machine
from vivace.device.choice import pick_device, pick_dtype
from vivace.finetune.examples import ExampleWriter, Transcript
from vivace.finetune.options import DataOptions, TrainOptions
from vivace.finetune.plan import TrainingPlan
from vivace.finetune.prepare import Clip
from vivace.finetune.request import FinetuneRequest
from vivace.finetune.run import finetune
from vivace.finetune.state import Judgement
from vivace.finetune.trainable import make_trainable
from vivace.finetune.trainer import Trainer
from vivace.model.config import ModelConfig, TalkerConfig
from vivace.model.config_file import parse_model_config
from vivace.model.layers import Attention, GatedMlp
from vivace.model.talker import Qwen3TTS
from vivace.speech import SAMPLE_RATE
from vivace.voices.voice import FRAME_RATE

NUM_RECORDINGS = 40  # of a whole run
WORDS = "the rain it raineth every day and we will strive to please you when that I was a boy"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["0.6B-Base", "1.7B-Base"])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--whole", action="store_true", help="measure whole runs too")
    parser.add_argument("--checkpoint", type=Path, help="of whole runs, instead of random weights")
    parser.add_argument("--limit-gb", nargs="+", type=float, help="for each shape")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = pick_device(args.device)
    context_gb = load_context(device)
    limits = args.limit_gb or [None] * len(args.shapes)
    results = []
    for shape, limit_gb in zip(args.shapes, limits, strict=True):
        for kind in (measure_steps, measure_run)[: 1 + args.whole]:
            limit_memory(device, limit_gb, context_gb)
            figures = {"shape": shape, "limit_gb": limit_gb, **kind(shape, args, device)}
            results.append({**figures, **memory(device, context_gb)})
            print(json.dumps(results[-1]), flush=True)
            if args.json:
                report = {"benchmark": "finetune", "machine": machine(), "runs": results}
                args.json.write_text(json.dumps(report, indent=2) + "\n")


def measure_steps(shape: str, args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    dtype = pick_dtype("auto", device)
    options = TrainOptions(full=args.full)
    config = parse_model_config(released_config(shape))
    torch.manual_seed(0)
    model: Qwen3TTS = random_module(Qwen3TTS, config, device, dtype)
    split_products(model)
    trainer, plan = make_trainer(model, config, options)
    steps = [step for epoch in range(100) for step in plan.steps(epoch)][: args.steps + 1]
    times, seconds = [], 0.0
    for number, step in enumerate(steps):
        batches = [[plan.example(0, index) for index in batch] for batch in step]
        begun = time.perf_counter()
        means = trainer.step(batches, 1e-4)  # copies the losses to the host
        if number:  # the first step allocates
            times.append(time.perf_counter() - begun)
            seconds += sum(len(one.codes) for batch in batches for one in batch) / FRAME_RATE
    return {
        "measured": "training steps",
        "trained": "full" if args.full else f"LoRA of rank {options.rank}",
        "values": trainer.trainables.num_values,
        "rows_per_step": options.rows_per_step,
        "step_s": round(sum(times) / len(times), 3),
        "audio_s_per_s": round(seconds / sum(times), 1),
        "loss": round(float(means[0]), 3),
    }


def measure_run(shape: str, args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Prepare recordings, train one epoch and speak held-out sentences."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.checkpoint or Path(scratch) / shape
        if args.checkpoint is None:
            write_checkpoint(shape, folder, device)
        write_recordings(Path(scratch) / "recordings")
        clear_memory(device)
        begun = time.perf_counter()
        result = finetune(
            FinetuneRequest(
                data=Path(scratch) / "recordings",
                output=Path(scratch) / ("merged" if args.full else "me.safetensors"),
                model=str(folder),
                name="me",
                recordings=DataOptions(language="english", check_transcripts=False),
                training=TrainOptions(full=args.full, epochs=1),
                device=args.device,
                samples=1,
            ),
            Stages(begun),
        )
    return {
        "measured": "whole run",
        "trained": "full" if args.full else f"LoRA of rank {TrainOptions().rank}",
        "recordings": result.data["recordings"],
        "seconds": round(time.perf_counter() - begun, 1),
    }


class Stages:
    """Prints the time and memory of each stage of a run."""

    def __init__(self, begun: float) -> None:
        self._begun = begun

    def progress(self, stage: str, done: int, total: int) -> None:
        if done == total:
            self.note(f"{stage}: {total}")

    def step(self, epoch: int, loss: float, share: float, left_s: float) -> None:
        self.note(f"step: loss {loss:.2f}")

    def epoch(self, judgement: Judgement, is_best: bool) -> None:
        self.note(f"epoch {judgement.epoch} is judged")

    def warn(self, text: str) -> None:
        self.note(text)

    def note(self, text: str) -> None:
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        seconds = time.perf_counter() - self._begun
        print(f"{seconds:6.1f} s  peak {peak / 1e9:5.2f} GB  {text}", flush=True)


def write_recordings(folder: Path) -> None:
    """Noise that rises and falls like speech, with transcripts of a plausible length."""
    folder.mkdir()
    draws, rng = random.Random(0), np.random.default_rng(0)
    for number in range(NUM_RECORDINGS):
        seconds = 29.0 if number == 0 else draws.uniform(3, 12)
        times = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
        noise = 0.1 * (0.6 + 0.4 * np.sin(10 * np.pi * times)) * rng.standard_normal(len(times))
        encoder = open_encoder("wav", SAMPLE_RATE)
        content = encoder.encode(noise.astype(np.float32)) + encoder.finish()
        (folder / f"{number:03d}.wav").write_bytes(content)
        text = " ".join(draws.choices(WORDS.split(), k=round(2.5 * seconds)))
        (folder / f"{number:03d}.txt").write_text(f"{text.capitalize()}.")


def split_products(model: Qwen3TTS) -> None:
    """Undo the fusion of `random_module`, which hides single weights."""
    for part in model.modules():
        for name in ("qkv_weight", "qk_scale", "gate_up_weight"):
            if isinstance(part, (Attention, GatedMlp)) and hasattr(part, name):
                setattr(part, name, None)


def make_trainer(
    model: Qwen3TTS, config: ModelConfig, options: TrainOptions
) -> tuple[Trainer, TrainingPlan]:
    ids = free_speaker_ids(config, ["me"])
    tokenizer = Checkpoint.open(EMBEDDED).load_tokenizer()
    writer = ExampleWriter(with_speakers(config, ids), tokenizer, ids)
    vector = torch.zeros(config.talker_config.hidden_size, device=model.device)
    trainables = make_trainable(model, options, {"me": vector}, trains_vectors=False)
    return Trainer(model, trainables, options), TrainingPlan.make(
        make_clips(config.talker_config), writer, options
    )


def make_clips(config: TalkerConfig, num: int = 200) -> list[Clip]:
    size = config.code_predictor_config.vocab_size
    rng, codes = random.Random(0), np.random.default_rng(0)
    clips = []
    for number in range(num):
        seconds = rng.uniform(3, 12)
        text = " ".join(rng.choices(WORDS.split(), k=round(2.5 * seconds))) + "."
        clips.append(
            Clip(
                where=str(number),
                transcript=Transcript(text=text, speaker="me", language="english"),
                codes=codes.integers(
                    0, size, (round(FRAME_RATE * seconds), config.num_code_groups)
                ),
                seconds=seconds,
                sha256=str(number),
            )
        )
    return clips


def load_context(device: torch.device) -> float:
    """The GPU memory in GB that CUDA and cuBLAS need. The GPU must have no other user."""
    if device.type != "cuda":
        return 0.0
    matrix = torch.ones(64, 64, device=device, dtype=torch.bfloat16)
    (matrix @ matrix).sum().item()  # loads cuBLAS
    free, total = torch.cuda.mem_get_info()
    return (total - free - torch.cuda.memory_reserved()) / 1e9


def limit_memory(device: torch.device, limit_gb: float | None, context_gb: float) -> None:
    """Limit PyTorch to the memory that CUDA leaves, and reset the peak statistics."""
    clear_memory(device)
    if device.type == "cuda" and limit_gb is not None:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction((limit_gb - context_gb) * 1e9 / total)


def clear_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def memory(device: torch.device, context_gb: float) -> dict[str, float]:
    if device.type != "cuda":
        return {}
    return {
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        "reserved_gb": round(torch.cuda.max_memory_reserved() / 1e9, 2),
        "context_gb": round(context_gb, 2),
    }


if __name__ == "__main__":
    main()
