"""Tests of the attention to the text of a request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.tiny import Tiny
from vivace import TTS
from vivace.model import ops
from vivace.model.config import Head
from vivace.prompt import Prompt, SpokenReference, build_prompt
from vivace.speech import TextLayout
from vivace.timing.attention import TextAttention

OWN = [11, 12, 13, 14, 15]


def prompt_of(
    tiny: Tiny,
    layout: TextLayout,
    num_ref_ids: int,
    num_ref_frames: int,
    speaker: NDArray[np.float32] | None = None,
) -> Prompt:
    config = tiny.model.config
    groups = config.talker_config.num_code_groups
    reference = SpokenReference(
        text_ids=range(30, 30 + num_ref_ids), codes=np.ones((num_ref_frames, groups), np.int64)
    )
    return build_prompt(
        config,
        OWN,
        role_ids=[1, 2, 3],
        layout=layout,
        speaker=speaker,
        reference=reference if num_ref_frames else None,
        instruct_ids=[5, 6],
    )


@pytest.mark.parametrize("layout", ["whole", "streamed"])
@pytest.mark.parametrize("reference", [(0, 0), (3, 6), (6, 3)])
def test_own_row_of_a_prompt_is_the_start_of_its_text(
    tiny: Callable[[str], Tiny], layout: TextLayout, reference: tuple[int, int]
) -> None:
    prompt = prompt_of(tiny("base"), layout, *reference)
    track = [*prompt.text_ids, *prompt.trailing_ids]
    assert track[prompt.own_row : prompt.own_row + len(OWN)] == OWN


@pytest.mark.parametrize("layout", ["whole", "streamed"])
@pytest.mark.parametrize("sizes", [[12], [1, 4, 7]])
def test_attention_in_several_reads_matches_one_pass(
    tiny: Callable[[str], Tiny], layout: TextLayout, sizes: list[int]
) -> None:
    model = tiny("base").model
    rng = np.random.default_rng(0)
    speaker = rng.normal(size=model.config.talker_config.hidden_size).astype(np.float32)
    prompt = prompt_of(tiny("base"), layout, 3, 6, speaker)
    codes = rng.integers(0, 8, (sum(sizes), model.config.talker_config.num_code_groups))
    last = model.config.talker_config.num_hidden_layers - 1
    heads = [
        Head(0, 1),
        Head(last, 0),
        Head(last, model.config.talker_config.num_attention_heads - 1),
    ]
    reader, parts = TextAttention(model, prompt, heads), []
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        parts.append(reader.read(codes[end - size : end], len(OWN)))
    found = np.concatenate(parts, axis=1)

    weights: dict[int, torch.Tensor] = {}

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        scores = q @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        weights[layer] = scores.masked_fill(~seen, -torch.inf).softmax(-1)[0]
        return ops.attention(q, k, v, is_causal=True)

    ids = [*prompt.text_ids, *prompt.trailing_ids]
    ids += [prompt.pad_id] * (len(prompt) + len(codes) - len(ids))
    with torch.inference_mode():
        x = model.talker.rows(
            torch.tensor(ids[: len(prompt) + len(codes)]),
            torch.from_numpy(np.concatenate([prompt.codes, codes])),
            torch.from_numpy(speaker),
        )[None]
        model.talker(x, model.talker.rope.span(0, x.shape[1], x), attend)
    rows = slice(len(prompt) - 1, len(prompt) - 1 + len(codes))
    columns = slice(prompt.own_row, prompt.own_row + len(OWN))
    for head, one in zip(heads, found, strict=True):
        expected = weights[head.layer][head.index, rows, columns].numpy()
        np.testing.assert_allclose(one, expected, atol=1e-5)


@pytest.mark.parametrize("layout", ["whole", "streamed"])
def test_cloned_voice_and_long_text_are_timed_without_errors(
    tiny_folder: Path, layout: TextLayout, caplog: pytest.LogCaptureFixture
) -> None:
    """Utterances that continue from a recording and from the previous utterance."""
    recording = np.random.default_rng(0).normal(0, 0.1, 36_000).astype(np.float32)
    text = "Hello there, said the user. " * 14
    options: dict[str, Any] = {"seed": 3, "min_frames": 8, "max_frames": 24, "text_layout": layout}
    with TTS.load(tiny_folder / "base", device="cpu") as tts, caplog.at_level(logging.WARNING):
        voice = tts.clone((recording, 24_000), "Words of the recording.")
        tts.speak(text, voice=voice, timings=True, guard=False, **options)
    assert "failed" not in caplog.text
