"""Shared parts of the stages: time limit, log, checkpoints, initial weights, CUDA graphs."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vivace.backends.cuda_graph.graphs import reset_generator
from vivace.model.codec_decoder import ConvNeXt, SnakeBeta
from vivace.model.layers import LayerScale, Linear, RMSNorm, Rope

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BEGUN = time.perf_counter()
SAVE_EVERY_S = 60.0  # between the checkpoints of a stage


def begin_stage() -> None:
    """Set precision and seed, and make a new memory pool for the stage's graphs."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = False  # took 25 s before the first step
    torch.manual_seed(1)
    if DEVICE.type == "cuda":
        Step.pool = torch.cuda.graph_pool_handle()


def autocast(precision: str) -> contextlib.AbstractContextManager[Any]:
    if precision == "bf16" and DEVICE.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()


class Log:
    """Writes JSON lines to a file and short lines to stdout."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path

    def __call__(self, stage: str, **values: Any) -> None:
        row = {"stage": stage, "t": round(time.perf_counter() - BEGUN, 1), **values}
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        shown = " ".join(
            f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()
        )
        print(shown, flush=True)


class TimeBox:
    """Progress from 0 to 1 over a number of seconds, counted from the first step."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._begun = time.perf_counter()

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._begun

    @property
    def progress(self) -> float:
        return self.elapsed / self.seconds if self.seconds else 1.0


class Timer:
    """True once in every `seconds`, for checkpoints during a run."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last = seconds, time.perf_counter()

    def is_due(self) -> bool:
        now = time.perf_counter()
        is_due = now - self._last >= self._seconds
        if is_due:
            self._last = now
        return is_due


def cosine(progress: float, step: int, warmup: int, final: float) -> float:
    level = final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return level * min(1.0, (step + 1) / warmup)


def late_decay(progress: float, final: float, begin: float) -> float:
    """1 until `begin`, then a linear decay. A later run can continue from the constant part."""
    rest = min(1.0, (progress - begin) / (1 - begin)) if progress > begin else 0.0
    return 1 - rest * (1 - final)


def optimizer(
    groups: list[nn.Parameter], lr: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.AdamW:
    """AdamW for CUDA graphs. Its learning rate is a tensor, which `set_lr` changes."""
    is_cuda = DEVICE.type == "cuda"
    return torch.optim.AdamW(
        [
            {"params": [p for p in groups if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in groups if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=torch.tensor(lr, device=DEVICE) if is_cuda else lr,
        betas=betas,
        capturable=is_cuda,
        fused=is_cuda,
    )


def set_lr(opt: torch.optim.Optimizer, lr: float) -> None:
    for group in opt.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def change_gain(samples: Tensor, range_db: list[float]) -> Tensor:
    """Samples [B, n], each item with another level."""
    return samples * _drawn_factors(samples, range_db)


def add_noise(samples: Tensor, range_db: list[float]) -> Tensor:
    """Samples [B, n] with white noise, whose level is relative to that of the item."""
    level = samples.square().mean(-1, keepdim=True).sqrt()
    return samples + torch.randn_like(samples) * level * _drawn_factors(samples, range_db)


def _drawn_factors(samples: Tensor, range_db: list[float]) -> Tensor:
    low, high = range_db
    decibels = low + (high - low) * torch.rand(len(samples), 1, device=samples.device)
    return 10 ** (decibels / 20)


def branches(count: int) -> list[torch.cuda.Stream | None]:
    """CUDA streams for concurrent work; none on a CPU."""
    return [torch.cuda.Stream() if DEVICE.type == "cuda" else None for _ in range(count)]


@contextlib.contextmanager
def beside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Run on `stream` after all work queued so far."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield


def join(streams: list[torch.cuda.Stream | None]) -> None:
    for stream in streams:
        if stream is not None:
            torch.cuda.current_stream().wait_stream(stream)


class Step:
    """A whole training step, captured as a CUDA graph if possible.

    `run` reads static tensors only and returns static tensors. `reset` clears gradients.
    """

    pool: Any = None

    def __init__(
        self, name: str, run: Callable[[], dict[str, Tensor]], reset: Callable[[], None],
        modules: list[nn.Module], *, use_graph: bool,
    ) -> None:  # fmt: skip
        self.name, self._run, self._reset = name, run, reset
        self._graph: torch.cuda.CUDAGraph | None = None
        self.has_failed = False  # the graph could not be captured
        self._kept: list[Any] = []
        self.outputs: dict[str, Tensor] = {}
        if use_graph and DEVICE.type == "cuda":
            self._capture(modules)

    def _capture(self, modules: list[nn.Module]) -> None:
        begun = time.perf_counter()
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._reset()
                    self._run()
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            # A graph holds addresses, so tables that a module may rebuild must stay alive.
            self._kept += [(r._cos, r._sin) for r in ropes(modules)]
            self._reset()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=Step.pool):
                self.outputs = self._run()
            self._kept += [(r._cos, r._sin) for r in ropes(modules)]
            self._kept.append([p.grad for m in modules for p in m.parameters()])
            self._graph = graph
            print(f"{self.name}: captured in {time.perf_counter() - begun:.1f} s", flush=True)
        except Exception as error:  # a failed capture must not end the run
            torch.cuda.synchronize()
            reset_generator()
            print(f"{self.name}: no graph ({type(error).__name__}: {error})", flush=True)
            self._graph, self.has_failed = None, True
        self._reset()

    def __call__(self) -> dict[str, Tensor]:
        if self._graph is not None:
            self._graph.replay()
        else:
            self._reset()
            self.outputs = self._run()
        return self.outputs


def train(
    stage: str, step: Step, optimizer: torch.optim.Optimizer, config: SimpleNamespace,
    seconds: float, log: Log, save: Callable[[], None],
) -> int:  # fmt: skip
    """Take steps with a cosine schedule for `seconds`, and return their number.

    `save` is called every minute and after the last step.
    """
    box, number, timer = TimeBox(seconds), 0, Timer(SAVE_EVERY_S)
    while (progress := box.progress) < 1:
        scale = cosine(progress, number, config.warmup_steps, config.final_lr)
        set_lr(optimizer, config.lr * scale)
        outputs = step()
        number += 1
        if number % 200 == 0 or number < 3:
            values = {name: float(value) for name, value in outputs.items()}
            log(stage, step=number, ms=1000 * box.elapsed / number, **values)
        if timer.is_due():
            save()
    if number:
        save()
    return number


def ropes(modules: list[nn.Module]) -> Iterator[Rope]:
    for root in modules:
        for module in root.modules():
            rope = getattr(module, "rope", None)
            if isinstance(rope, Rope):
                yield rope


def initialise(model: nn.Module, layer_scale: float = 0.1) -> None:
    """Initialise the parameters, which the model code leaves empty."""
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            std = 0.02 if name.endswith(("o_proj", "down_proj")) else module.in_features**-0.5
            nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.1)
        elif isinstance(module, RMSNorm):
            nn.init.ones_(module.weight)
        elif isinstance(module, LayerScale):
            nn.init.constant_(module.scale, layer_scale)
        elif isinstance(module, SnakeBeta):
            nn.init.zeros_(module.alpha)
            nn.init.zeros_(module.beta)
        elif isinstance(module, ConvNeXt):
            nn.init.constant_(module.gamma, layer_scale)


def save_half(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write 16-bit weights atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = {
        name: (t.detach().half() if t.is_floating_point() else t.detach()).cpu().contiguous()
        for name, t in tensors.items()
    }
    save_file(half, f"{path}.tmp")
    Path(f"{path}.tmp").rename(path)
    print(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB", flush=True)


def load_half(path: Path, model: nn.Module) -> None:
    load_grown(model, {name: tensor.float() for name, tensor in load_file(path).items()})


# Tensors that a model with more codebooks adds.
OF_A_BOOK = ("rvq_rest.vq.layers.", "code_predictor.lm_head.", "predictor.model.codec_embedding.")


def load_grown(model: nn.Module, loaded: dict[str, Tensor]) -> None:
    """Load all weights, or those of a model with fewer codebooks."""
    missing, unexpected = model.load_state_dict(loaded, strict=False)
    if wrong := [*unexpected, *(n for n in missing if not any(part in n for part in OF_A_BOOK))]:
        raise SystemExit(f"the checkpoint belongs to another model: {', '.join(wrong[:5])}")
