"""The compat classes speak every text that the official classes speak, with the same ids."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.official_calls import official_items
from tests.support.slots import plain_backend
from vivace.compat import FasterQwen3TTS, Qwen3TTSModel
from vivace.compat.prompts import VoiceClonePromptItem
from vivace.errors import TextError
from vivace.prompt import Prompt
from vivace.tts import TTS

BRIEF: dict[str, Any] = {"do_sample": False, "subtalker_dosample": False, "max_new_tokens": 5}
TEXTS = [
    "?", "!", ".", "...", "…", "。", "？！", "* * *", "—", "\U0001f642", "",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", " ", "   ", "\t", "\n", "\n\n", " \n \n",
    "\nHello.", "\n\n  Hello.\n", "\r\nHello.", " Hello. ",
    "a" + 80 * " " + "b", "[pause 0.5s]", "One.[pause 1s]Two.", "**bold** [link](http://a.b)",
    "مرحبا بالعالم", "नमस्ते",
    "Hello <|im_end|> there.", "<|im_start|>user", "\u200b", "\ufeffHello.", "<tts_pad>",
    "e\u0301",
]  # fmt: skip


@contextlib.contextmanager
def prompts_of(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Prompt]]:
    """Record the prompts that reach the backend."""
    seen: list[Prompt] = []
    admit = plain_backend(tts).admit

    def watch(prompt: Prompt, *arguments: Any) -> Any:
        seen.append(prompt)
        return admit(prompt, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(tts.engine.backend, "admit", watch)
        yield seen


def prompt_of(
    model: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch, text: str, **options: Any
) -> Prompt:
    """The prompt of a text that is spoken with a preset voice."""
    with prompts_of(model.tts, monkeypatch) as prompts:
        waves, _ = model.generate_custom_voice(text, "ryan", "english", **options, **BRIEF)
    assert len(waves[0]) == 4 * 1920
    (prompt,) = prompts
    return prompt


def official_ids(model: Qwen3TTSModel, text: str) -> tuple[list[int], list[int]]:
    """Ids of role and text, sliced from the template's ids like in the official code."""
    (ids,) = model._tokenize_texts([model._build_assistant_text(text)])
    return ids[0, :3].tolist(), ids[0, 3:-5].tolist()


@pytest.mark.parametrize("text", TEXTS)
def test_whole_layout_of_any_text_has_the_official_ids(
    load: Callable[[str], Qwen3TTSModel], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    model = load("custom_voice")
    role, ids = official_ids(model, text)
    prompt = prompt_of(model, monkeypatch, text)
    config = model.model.config
    end = [config.tts_eos_token_id, config.tts_pad_token_id]
    assert list(prompt.text_ids[:3]) == role
    assert list(prompt.text_ids[len(prompt) - len(ids) - 2 :]) == [*ids, *end]


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_layout_of_any_text_has_the_official_ids(
    load: Callable[[str], Qwen3TTSModel], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    model = load("custom_voice")
    role, ids = official_ids(model, text)
    prompt = prompt_of(model, monkeypatch, text, non_streaming_mode=False)
    config = model.model.config
    first, *rest = ids or [config.im_end_token_id]  # the official code takes the id at this index
    assert list(prompt.text_ids[:3]) == role
    assert prompt.text_ids[-1] == first
    assert list(prompt.trailing_ids) == [*rest, config.tts_eos_token_id]


@pytest.mark.parametrize("call", ["empty_text_streaming", "empty_text_offline"])
def test_empty_text_has_the_official_codes(
    load: Callable[[str], Qwen3TTSModel], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    model = load("custom_voice")
    (item,) = (i for i in official_items("custom_voice", with_empty=True) if i.call == call)
    waves, _ = model.generate_custom_voice(
        "",
        item.raw["speaker"],
        item.raw["language"],
        non_streaming_mode=item.layout == "offline",
        **item.settings,
    )
    expected, _ = model.model.speech_tokenizer.decode([{"audio_codes": item.codes}])
    np.testing.assert_allclose(waves[0], expected[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("text", ["?", "", "\n\nHello.", "\U0001f642"])
def test_in_context_clone_speaks_any_text(
    load: Callable[[str], Qwen3TTSModel],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    is_whole: bool,
) -> None:
    model = load("base")
    reference = np.sin(np.arange(48_000) / 10).astype(np.float32)
    (item,) = model.create_voice_clone_prompt((reference, 24_000), "A reference.")
    assert isinstance(item, VoiceClonePromptItem)
    role, ids = official_ids(model, text)
    with prompts_of(model.tts, monkeypatch) as prompts:
        model.generate_voice_clone(
            text, "english", voice_clone_prompt=item, non_streaming_mode=is_whole, **BRIEF
        )
    (prompt,) = prompts
    assert list(prompt.text_ids[:3]) == role
    words = [*model.tts.tokenizer.encode("A reference."), *ids, model.model.config.tts_eos_token_id]
    all_ids = [*prompt.text_ids, *prompt.trailing_ids]
    assert any(all_ids[at : at + len(words)] == words for at in range(len(all_ids)))


def test_faster_class_streams_a_question_mark(tiny_folder: Path) -> None:
    model = FasterQwen3TTS.from_pretrained(str(tiny_folder / "custom_voice"), device="cpu")
    for text in ("?", "", "\U0001f642"):
        chunks = list(
            model.generate_custom_voice_streaming(
                text, "ryan", "english", max_new_tokens=6, chunk_size=4, seed=1
            )
        )
        assert sum(timing["chunk_steps"] for _, _, timing in chunks) == 6


def test_long_text_without_words_is_spoken(load: Callable[[str], Qwen3TTSModel]) -> None:
    model = load("custom_voice")
    for text in (200 * "? ", 400 * " ", 500 * "."):
        waves, _ = model.generate_custom_voice(text, "ryan", "english", **BRIEF)
        assert len(waves[0]) == 4 * 1920


def test_tts_rejects_text_without_words(load: Callable[[str], Qwen3TTSModel]) -> None:
    for text in ("?", "", "..."):
        with pytest.raises(TextError, match="nothing to speak"):
            load("custom_voice").tts.speak(text)
