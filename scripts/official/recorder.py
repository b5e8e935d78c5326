"""Records the tensors of an official model while its public methods run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MIN_MARGIN = 2e-5  # a greedy choice with a smaller margin may differ on another machine


class Recorder:
    """The tensors of the last call: inputs, prefill rows, logits, scores and codes.

    The official methods are wrapped on the instance. Their arguments and results do not change,
    except that generate() also returns its logits and scores.
    """

    def __init__(self, tts: Any) -> None:
        self.model = tts.model
        self._clear()
        self._wrap(self.model, "generate", self._on_model)
        self._wrap(self.model.talker, "generate", self._on_talker, **RETURNED)
        self._wrap(self.model.talker.code_predictor, "generate", self._on_predictor, **RETURNED)
        self.model.talker.model.register_forward_pre_hook(self._on_rows, with_kwargs=True)

    def _clear(self) -> None:
        self.inputs: dict[str, Any] = {}  # arguments of the inner generate: ids, prompt, languages
        self.talker_inputs: dict[str, Any] = {}  # padded rows, mask, trailing text
        self.rows: list[Tensor] = []  # the talker's input: the prefill, then a row per frame
        self.logits: Tensor = torch.empty(0)  # [B, steps, vocabulary]
        self.scores: Tensor = torch.empty(0)  # the same after the logits processors
        self.hidden: Tensor = torch.empty(0)  # [B, steps, hidden]: the predictor's input
        self.predictor_logits: list[Tensor] = []  # one per frame: [B, codebooks - 1, codes]
        self.codes: list[Tensor] = []  # one per item: [frames, codebooks]

    def _wrap(self, owner: Any, name: str, listener: Any, **extra: Any) -> None:
        official = getattr(owner, name)

        def wrapped(**kwargs: Any) -> Any:
            if owner is self.model:
                self._clear()
            result = official(**kwargs, **extra)
            listener(kwargs, result)
            return result

        setattr(owner, name, wrapped)

    def _on_model(self, kwargs: dict[str, Any], result: Any) -> None:
        self.inputs = kwargs
        self.codes, _ = result

    def _on_talker(self, kwargs: dict[str, Any], result: Any) -> None:
        self.talker_inputs = kwargs
        self.logits = torch.stack(result.logits, dim=1)
        self.scores = torch.stack(result.scores, dim=1)
        self.hidden = torch.cat([step[0][-1][:, -1:] for step in result.hidden_states], dim=1)

    def _on_predictor(self, kwargs: dict[str, Any], result: Any) -> None:
        self.predictor_logits.append(torch.stack(result.logits, dim=1))

    def _on_rows(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.rows.append(kwargs["inputs_embeds"].clone())

    def margin(self, index: int) -> float:
        """The smallest margin between the best and the second score of all choices of an item."""
        num_frames = len(self.codes[index])
        num_steps = min(num_frames + 1, self.scores.shape[1])  # the choice of EOS counts too
        frames = [logits[index] for logits in self.predictor_logits[:num_frames]]
        leads = [lead(self.scores[index, :num_steps]), *(lead(logits) for logits in frames)]
        return min(leads)


RETURNED = {"output_logits": True, "output_scores": True}


def lead(scores: Tensor) -> float:
    best, second = scores.topk(2, dim=-1).values.unbind(-1)
    return (best - second).min().item()
