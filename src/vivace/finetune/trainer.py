"""One optimizer over the trained values: steps, held-out losses, and a state that can be saved."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vivace.errors import TrainingDataError
from vivace.finetune.losses import CodeLosses, code_losses
from vivace.finetune.options import TrainOptions
from vivace.finetune.trainable import Trainables
from vivace.model.layers import Block
from vivace.model.talker import Qwen3TTS
from vivace.teacher_forcing import Example, collate, count_predictions

BETAS = (0.9, 0.99)
MOMENTS = ("exp_avg", "exp_avg_sq")


class Trainer:
    def __init__(self, model: Qwen3TTS, trainables: Trainables, options: TrainOptions) -> None:
        self.model, self.trainables, self.options = model, trainables, options
        self._parameters = trainables.parameters()
        decayed = [one for one in self._parameters.values() if one.ndim > 1]
        others = [one for one in self._parameters.values() if one.ndim <= 1]
        groups = [
            {"params": decayed, "weight_decay": options.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=options.learning_rate, betas=BETAS
        )
        if options.recompute:
            recompute_blocks(model)

    def step(self, batches: Sequence[Sequence[Example]], rate: float) -> Tensor:
        """Train on one step's batches; returns the mean loss of each codebook before it."""
        try:
            return self._step(batches, rate)
        except torch.OutOfMemoryError as error:
            raise TrainingDataError(
                "the device has too little memory; lower --rows-per-batch or --max-seconds"
            ) from error

    def _step(self, batches: Sequence[Sequence[Example]], rate: float) -> Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        examples = [example for batch in batches for example in batch]
        num_frames = sum(len(example.codes) for example in examples)
        counts = count_predictions(len(examples), num_frames, examples[0].codes.shape[1])
        sums = torch.zeros(len(counts), device=self.model.device)
        for batch in batches:
            losses = self._losses(batch)
            losses.total(self.options.residual_weight, counts).backward()
            sums += losses.sums.detach()
        norm = nn.utils.clip_grad_norm_(list(self._parameters.values()), self.options.clip)
        if not bool(torch.isfinite(norm)):
            raise TrainingDataError(
                "the gradient is not finite; lower --learning-rate, or use --dtype float32"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        return (sums / counts.to(sums)).cpu()

    @torch.no_grad()
    def evaluate(self, examples: Sequence[Example]) -> Tensor:
        """The mean loss of each codebook over all predictions of these examples."""
        parts = [
            self._losses([example])
            for example in sorted(examples, key=len)  # a fixed order, so that sums are equal
        ]
        sums = torch.stack([part.sums for part in parts]).double().sum(0)
        counts = torch.stack([part.counts for part in parts]).sum(0)
        return (sums.cpu() / counts).float()

    def total(self, means: Tensor) -> float:
        """The loss that training minimises, of mean losses by codebook."""
        return CodeLosses(means, torch.ones_like(means)).total(self.options.residual_weight).item()

    def _losses(self, examples: Sequence[Example]) -> CodeLosses:
        batch = collate(examples, self.model.device, self.trainables.vectors)
        recomputes = self.options.recompute and torch.is_grad_enabled()
        return code_losses(self.model, batch, recomputes=recomputes)

    # -- state ---------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Trained values and the optimizer's moments, on the CPU."""
        tensors = {f"value/{name}": one.detach() for name, one in self._parameters.items()}
        for name, parameter in self._parameters.items():
            moments = self._optimizer.state.get(parameter)
            if moments:
                tensors |= {f"{key}/{name}": moments[key] for key in MOMENTS}
                tensors[f"step/{name}"] = torch.as_tensor(moments["step"])
        return {name: one.cpu().clone().contiguous() for name, one in tensors.items()}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue from `state`. Raises TrainingDataError if it belongs to another run."""
        wanted = {f"value/{name}" for name in self._parameters}
        found = {name for name in tensors if name.startswith("value/")}
        if wanted != found:
            raise TrainingDataError("the saved state belongs to a run with other trained parts")
        for name, parameter in self._parameters.items():
            value = tensors[f"value/{name}"]
            if value.shape != parameter.shape:
                raise TrainingDataError(f"the saved state has another shape of {name}")
            parameter.data.copy_(value)
            if f"step/{name}" in tensors:
                moments: dict[str, Any] = {
                    key: tensors[f"{key}/{name}"].to(parameter.device) for key in MOMENTS
                }
                self._optimizer.state[parameter] = {"step": tensors[f"step/{name}"], **moments}


def recompute_blocks(model: Qwen3TTS) -> None:
    """Compute the activations of each layer again in backward instead of keeping them."""
    for module in model.talker.modules():
        if isinstance(module, Block):
            forward = module.forward
            module.forward = partial(_recomputed, forward)  # type: ignore[method-assign]


def _recomputed(forward: Any, *inputs: Any) -> Tensor:
    if not torch.is_grad_enabled():
        result: Tensor = forward(*inputs)
        return result
    recomputed: Tensor = checkpoint(forward, *inputs, use_reentrant=False)
    return recomputed
