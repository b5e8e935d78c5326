"""Memory and speed of `vivace finetune` with random weights of a released shape.

    python benchmarks/finetune.py --shapes 0.6B-Base 1.7B-Base --json finetune.json

Trains a few steps on random codes with the default options: LoRA, bfloat16 on a GPU, recomputed
activations. Recordings last 3 to 12 s. The peak is PyTorch's highest allocated memory.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from released import released_config
from shapes import random_module

from vivace.adapter import free_speaker_ids, with_speakers
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.cli.bench.machine import machine
from vivace.device import pick_device, pick_dtype
from vivace.finetune.examples import ExampleWriter, Transcript
from vivace.finetune.options import TrainOptions
from vivace.finetune.plan import TrainingPlan
from vivace.finetune.prepare import Clip
from vivace.finetune.trainable import make_trainable
from vivace.finetune.trainer import Trainer
from vivace.model.config import ModelConfig, TalkerConfig, parse_model_config
from vivace.model.layers import Attention, GatedMlp
from vivace.model.talker import Qwen3TTS

FRAME_RATE = 12.5
WORDS = "the rain it raineth every day and we will strive to please you when that I was a boy"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["0.6B-Base", "1.7B-Base"])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = [measure(shape, args) for shape in args.shapes]
    if args.json:
        report = {"benchmark": "finetune", "machine": machine(), "runs": results}
        args.json.write_text(json.dumps(report, indent=2) + "\n")


def measure(shape: str, args: argparse.Namespace) -> dict[str, Any]:
    device = pick_device(args.device)
    dtype = pick_dtype("auto", device)
    options = TrainOptions(full=args.full)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
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
    result = {
        "shape": shape,
        "trained": "full" if args.full else f"LoRA of rank {options.rank}",
        "values": trainer.trainables.num_values,
        "peak_gb": round(peak_bytes(device) / 1e9, 2),
        "rows_per_step": options.rows_per_step,
        "step_s": round(sum(times) / len(times), 3),
        "audio_s_per_s": round(seconds / sum(times), 1),
        "loss": round(float(means[0]), 3),
    }
    print(json.dumps(result), flush=True)
    return result


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


def peak_bytes(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


if __name__ == "__main__":
    main()
