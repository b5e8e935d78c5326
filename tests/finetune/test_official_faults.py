"""The measured faults of the official fine-tuning script, each against the engine's own losses.

Every test computes the official formula too (`sft_12hz.py` and `dataset.py` of QwenLM/Qwen3-TTS,
issue 371). It is the control: the same check must fail for it.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tests.finetune.engine_logits import engine_losses
from tests.finetune.test_losses import Case, plain_model, random_codes, write_prompt
from tests.support.project import ROOT
from tests.support.tiny import Tiny
from vivace.finetune.examples import ExampleWriter, Transcript
from vivace.finetune.losses import code_losses
from vivace.model.talker import Qwen3TTS, Talker
from vivace.teacher_forcing import Batch, Example, collate, residual_logits, talker_states

CPU = torch.device("cpu")
LoadTiny = Callable[[str], Tiny]


@pytest.fixture(params=["custom_voice", "custom_voice_projected"])
def loaded(tiny: LoadTiny, request: pytest.FixtureRequest) -> Tiny:
    return tiny(request.param)


@pytest.fixture
def example(loaded: Tiny) -> Example:
    prompt = write_prompt(loaded, Case(loaded.checkpoint.folder.name, "ryan", "whole"))
    return Example(prompt=prompt, codes=random_codes(12, 4))


@pytest.fixture
def model(loaded: Tiny) -> Qwen3TTS:
    return plain_model(loaded)


@pytest.fixture
def expected(loaded: Tiny, example: Example) -> list[float]:
    return engine_losses(loaded.model, loaded.codec, example.prompt, example.codes)


def found_losses(model: Qwen3TTS, example: Example) -> list[float]:
    with torch.no_grad():
        return code_losses(model, collate([example], CPU)).means.tolist()


def labels_of(batch: Batch, end: int) -> Tensor:
    """Labels of codebook 0 beside the rows that hold these codes, as the official data set."""
    labels = torch.full((batch.text_ids.shape[1] + 1,), -100)
    labels[batch.before + 1] = batch.frames[:, 0]
    labels[batch.last + 1] = end
    return labels


def test_labels_of_codebook_0_are_shifted_once(
    model: Qwen3TTS, example: Example, expected: list[float]
) -> None:
    batch, talker = collate([example], CPU), model.talker
    with torch.no_grad():
        logits = talker.codec_head(talker_states(talker, batch))
    labels = labels_of(batch, talker.config.codec_eos_token_id)
    once = F.cross_entropy(logits, labels[1:])
    # The script shifts the labels, and the loss of transformers shifts them again.
    official = F.cross_entropy(logits[:-1], labels[1:][1:])
    assert found_losses(model, example)[0] == pytest.approx(expected[0], abs=2e-4)
    assert once.item() == pytest.approx(expected[0], abs=2e-4)
    assert official.item() != pytest.approx(expected[0], abs=0.05)


def residual_means(talker: Talker, hidden: Tensor, frames: Tensor) -> list[float]:
    logits = residual_logits(talker, hidden, frames)
    return [F.cross_entropy(one, frames[:, g]).item() for g, one in enumerate(logits, start=1)]


def test_predictor_starts_from_the_state_before_its_frame(
    model: Qwen3TTS, example: Example, expected: list[float]
) -> None:
    batch, talker = collate([example], CPU), model.talker
    with torch.no_grad():
        hidden = talker_states(talker, batch)
        ours = residual_means(talker, hidden[batch.before], batch.frames)
        # The script takes the states of the rows that hold the frames, one row too late.
        official = residual_means(talker, hidden[batch.before + 1], batch.frames)
    assert ours == pytest.approx(expected[1:], abs=2e-4)
    assert np.abs(np.subtract(official, expected[1:])).max() > 0.05


def test_last_codebook_is_learnt(model: Qwen3TTS, example: Example) -> None:
    batch, talker = collate([example], CPU), model.talker
    heads = talker.code_predictor.lm_head

    def last_gradient(loss: Tensor) -> float:
        loss.backward()
        grad = heads[-1].weight.grad
        assert grad is None or isinstance(grad, Tensor)
        return 0.0 if grad is None else float(grad.abs().sum())

    model.requires_grad_(True)
    hidden = talker_states(talker, batch).detach()[batch.before]
    logits = torch.stack(residual_logits(talker, hidden, batch.frames), dim=1)
    # transformers' loss shifts the 15 labels again: head g learns codebook g + 1, the last none.
    shifted = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch.frames[:, 2:].flatten())
    assert last_gradient(shifted) == 0.0
    model.zero_grad(set_to_none=True)
    assert last_gradient(code_losses(model, batch).total(0.3)) > 0.0


def test_text_passes_through_its_projection(
    model: Qwen3TTS, example: Example, expected: list[float]
) -> None:
    assert found_losses(model, example) == pytest.approx(expected, abs=2e-4)
    talker = model.talker
    # The script adds the text embeddings as they are.
    talker.text_projection = torch.nn.Identity()
    if talker.config.text_hidden_size != talker.config.hidden_size:
        with pytest.raises(RuntimeError, match="must match the size"):
            found_losses(model, example)  # 0.6B crashes
    else:
        official = found_losses(model, example)  # 1.7B trains on the wrong vectors
        assert np.abs(np.subtract(official, expected)).max() > 0.05


def test_learning_rate_is_stated_once_and_everywhere_the_same() -> None:
    from vivace.cli.parser import build_parser
    from vivace.finetune.options import TrainOptions

    default = TrainOptions.__dataclass_fields__["learning_rate"].default
    parser, _ = build_parser()
    arguments = parser.parse_args(["finetune", "data", "--name", "me"])
    assert isinstance(arguments, argparse.Namespace)
    assert arguments.learning_rate in (None, default)
    text = (ROOT / "docs" / "finetuning.md").read_text(encoding="utf-8")
    stated = re.findall(r"`--learning-rate` \| ([\d.e-]+)", text)
    assert [float(one) for one in stated] == [default]


def test_language_of_a_recording_reaches_the_prompt(loaded: Tiny) -> None:
    writer = ExampleWriter(loaded.checkpoint.config, loaded.tokenizer)
    codes: NDArray[np.int64] = random_codes(3, 1)
    german = writer.write(Transcript(text="Guten Tag.", speaker="ryan", language="german"), codes)
    config = loaded.checkpoint.config.talker_config
    first = german.prompt.codes[:, 0].tolist()
    assert config.codec_language_id["german"] in first
    assert config.codec_think_id in first
    # The script always writes `codec_nothink_id`, the prompt of an unknown language.
    unknown = writer.write(Transcript(text="Guten Tag.", speaker="ryan"), codes)
    assert config.codec_nothink_id in unknown.prompt.codes[:, 0].tolist()
    assert config.codec_nothink_id not in first


def test_losses_have_no_second_implementation_of_the_model() -> None:
    from vivace import teacher_forcing
    from vivace.finetune import losses

    source = inspect.getsource(losses) + inspect.getsource(teacher_forcing)
    assert "talker.rows(" in source
    assert "softmax" not in source
    assert "scaled_dot_product" not in source
