"""The trainer's losses are those of the engine's own logits, and training lowers them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.finetune.engine_logits import engine_losses
from tests.support.tiny import Tiny
from vivace.finetune.losses import code_losses
from vivace.model.layers import fuse
from vivace.model.talker import Qwen3TTS
from vivace.options import SpeechOptions
from vivace.prompt import Prompt
from vivace.script.prompts import PromptWriter
from vivace.script.request import Request
from vivace.teacher_forcing import Batch, Example, collate
from vivace.voices.voice import Voice

CPU = torch.device("cpu")
LoadTiny = Callable[[str], Tiny]


def random_codes(num_frames: int, seed: int, num_books: int = 16) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 64, (num_frames, num_books))


def random_voice(width: int, *, in_context: bool) -> Voice:
    speaker = np.random.default_rng(5).standard_normal(width).astype(np.float32)
    if not in_context:
        return Voice(name="me", speaker=speaker)
    return Voice(name="me", speaker=speaker, ref_codes=random_codes(4, 9), ref_text="So it is.")


@dataclass(frozen=True)
class Case:
    checkpoint: str
    voice: str | None  # a preset; "x-vector" or "in context" for a cloned voice
    layout: Any
    language: str = "auto"
    instruct: str | None = None

    def __str__(self) -> str:
        parts = (self.checkpoint, self.voice, self.layout, self.language, self.instruct)
        return "-".join(str(part) for part in parts if part)


def cases() -> Iterator[Case]:
    for layout in ("whole", "streamed"):
        for name in ("base", "base_projected"):
            for voice in ("x-vector", "in context"):
                for language in ("auto", "german"):
                    yield Case(name, voice, layout, language)
        for name in ("custom_voice", "custom_voice_projected"):
            for voice, language in (("ryan", "english"), ("eric", "auto"), ("dylan", "chinese")):
                yield Case(name, voice, layout, language)
        yield Case("custom_voice_projected", "vivian", layout, "french", "Speak slowly.")
        yield Case("voice_design", None, layout, "auto", "A warm old man.")
        yield Case("voice_design", None, layout, "japanese", "A child.")


def write_prompt(tiny: Tiny, case: Case) -> Prompt:
    writer = PromptWriter(tiny.checkpoint.config, tiny.tokenizer)
    width = tiny.checkpoint.config.talker_config.hidden_size
    is_cloned = case.voice in ("x-vector", "in context")
    voice = random_voice(width, in_context=case.voice == "in context") if is_cloned else case.voice
    options = SpeechOptions(language=case.language, instruct=case.instruct, text_layout=case.layout)
    text = "The rain it raineth every day."
    request = Request(text=text, voice=voice, options=options)
    writer.checker.check(request)
    return writer.write(request, text, writer.encode(request, text))[0]


def plain_model(tiny: Tiny) -> Qwen3TTS:
    """Weights of its own that gradients can reach."""
    return tiny.checkpoint.load_plain_model(CPU, torch.float32)


def trained_means(model: Qwen3TTS, examples: list[Example]) -> list[float]:
    with torch.no_grad():
        return code_losses(model, collate(examples, CPU)).means.tolist()


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_losses_of_a_case_equal_those_of_the_engine(tiny: LoadTiny, case: Case) -> None:
    loaded = tiny(case.checkpoint)
    example = Example(prompt=write_prompt(loaded, case), codes=random_codes(7, 3))
    expected = engine_losses(loaded.model, loaded.codec, example.prompt, example.codes)
    found = trained_means(plain_model(loaded), [example])
    assert found == pytest.approx(expected, abs=2e-4)


def test_losses_of_a_padded_batch_equal_the_sum_of_its_examples(tiny: LoadTiny) -> None:
    loaded = tiny("base_projected")
    model = plain_model(loaded)
    examples = [
        Example(
            prompt=write_prompt(loaded, Case("base_projected", voice, layout)),
            codes=random_codes(num_frames, num_frames),
        )
        for num_frames, voice, layout in (
            (9, "x-vector", "whole"), (1, "in context", "streamed"), (30, "x-vector", "streamed"),
        )
    ]  # fmt: skip
    with torch.no_grad():
        apart = [code_losses(model, collate([example], CPU)) for example in examples]
        together = code_losses(model, collate(examples, CPU))
    sums = torch.stack([one.sums for one in apart]).sum(0)
    torch.testing.assert_close(together.sums, sums, rtol=1e-5, atol=1e-3)
    assert together.counts.tolist() == [43.0, *[40.0] * 15]


def test_batches_of_a_step_have_the_gradient_of_one_large_batch(tiny: LoadTiny) -> None:
    loaded = tiny("custom_voice")
    examples = [
        Example(
            prompt=write_prompt(loaded, Case("custom_voice", "ryan", "whole")),
            codes=random_codes(n, n),
        )
        for n in (3, 11)
    ]

    def gradient(batches: list[Batch]) -> Tensor:
        model = plain_model(loaded).requires_grad_(True)
        counts = torch.stack([batch.counts for batch in batches]).sum(0)
        for batch in batches:
            code_losses(model, batch).total(0.3, counts).backward()
        grad = model.talker.model.layers[0].mlp.down_proj.weight.grad  # type: ignore[union-attr]
        assert isinstance(grad, Tensor)
        return grad

    one = gradient([collate(examples, CPU)])
    several = gradient([collate([example], CPU) for example in examples])
    torch.testing.assert_close(one, several, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "voice"),
    [("base", "x-vector"), ("base_projected", "in context"), ("custom_voice", "ryan"),
     ("custom_voice_projected", "eric"), ("voice_design", None)],
)  # fmt: skip
def test_one_step_lowers_the_engine_loss_by_the_predicted_amount(
    tiny: LoadTiny, name: str, voice: str | None
) -> None:
    loaded = tiny(name)
    instruct = "A warm voice." if name == "voice_design" else None
    prompt = write_prompt(loaded, Case(name, voice, "whole", "english", instruct))
    example = Example(prompt=prompt, codes=random_codes(8, 1))
    model = plain_model(loaded).requires_grad_(True)
    before = engine_losses(loaded.model, loaded.codec, prompt, example.codes)
    loss = code_losses(model, collate([example], CPU)).total(0.3)
    loss.backward()
    step, predicted = 1e-4, 0.0
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                predicted += step * float(parameter.grad.square().sum())
                parameter.sub_(step * parameter.grad)
    model.requires_grad_(False)
    fuse(model)
    after = engine_losses(model, loaded.codec, prompt, example.codes)

    def total(losses: list[float]) -> float:
        return losses[0] + 0.3 * float(np.mean(losses[1:]))

    assert loss.item() == pytest.approx(total(before), abs=2e-4)
    assert total(before) - total(after) == pytest.approx(predicted, rel=0.1)
    assert predicted > 1e-3
