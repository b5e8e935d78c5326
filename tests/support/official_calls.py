"""Calls of the official package and their results, read from tests/golden."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.support.project import ROOT
from tests.support.tiny import Tiny
from vivace.prompt import Prompt, SpokenReference, build_prompt
from vivace.speech import SamplingParams

GOLDEN = ROOT / "tests" / "golden"


@dataclass(frozen=True)
class OfficialItem:
    """One utterance of an official call."""

    model: str
    call: str
    index: int
    raw: dict[str, Any]
    settings: dict[str, Any]
    layout: str
    tensors: dict[str, NDArray[Any]]  # of this item: codes, prefill_rows, ...
    references: dict[str, dict[str, Any]]  # text, codes and speaker

    @property
    def codes(self) -> NDArray[np.int64]:
        return self.tensors["codes"].astype(np.int64)

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(
            temperature=0.0,
            seed=0,
            repetition_penalty=self.settings.get("repetition_penalty", 1.05),
            max_frames=self.settings["max_new_tokens"] - 1,
        )

    def prompt(self, tiny: Tiny) -> Prompt:
        raw, tokenizer, config = self.raw, tiny.tokenizer, tiny.checkpoint.config
        instruct = raw.get("instruct") if config.honours_instruct else None
        turn: list[int] = []
        if instruct is not None:
            end = [config.im_end_token_id, *tokenizer.encode("\n")]
            turn = [*tokenizer.role_ids("user"), *tokenizer.encode(instruct), *end]
        reference = self.references.get(raw.get("reference", ""))
        spoken = None
        if reference is not None and not raw["x_vector_only"]:
            spoken = SpokenReference(
                text_ids=tokenizer.encode(reference["text"]),
                codes=reference["codes"].astype(np.int64),
            )
        return build_prompt(
            config,
            tokenizer.encode(raw["text"]),
            role_ids=tokenizer.role_ids("assistant"),
            layout="streamed" if self.layout == "streaming" else "whole",
            language=raw["language"],
            preset=raw.get("speaker"),
            speaker=reference["speaker"] if reference is not None else None,
            reference=spoken,
            instruct_ids=turn,
        )


def official_items(model: str, *, with_empty: bool = False) -> Iterator[OfficialItem]:
    """`with_empty`: empty texts too, which the compat classes speak and `TTS` refuses."""
    header = json.loads((GOLDEN / f"codes_{model}.json").read_text())
    tensors = load_file(GOLDEN / f"codes_{model}.safetensors")
    references = {}
    for entry in header["references"]:
        name = entry["name"]
        references[name] = {
            "text": entry["text"],
            "codes": tensors[f"{name}.ref_code"],
            "speaker": tensors[f"{name}.ref_spk_embedding"],
        }
    for call in header["calls"]:
        for index, raw in enumerate(call["items"]):
            if not raw["text"] and not with_empty:
                continue
            prefix = f"{call['name']}.{index}."
            yield OfficialItem(
                model=model,
                call=call["name"],
                index=index,
                raw=raw,
                settings=call["settings"],
                layout="offline" if call["non_streaming_mode"] else "streaming",
                tensors={
                    k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)
                },
                references=references,
            )
