"""Names, order, kinds and defaults of arguments equal those of the original packages.

tests/golden/signatures.json has the original signatures (scripts/official/make_signatures.py). If
the packages are installed, the tests also read them from there.
"""

from __future__ import annotations

import inspect
import json
from importlib.util import find_spec
from typing import Any

import pytest

from tests.support.project import ROOT, load_script
from vivace import compat

TABLE: dict[str, dict[str, list[list[str]]]] = json.loads(
    (ROOT / "tests" / "golden" / "signatures.json").read_text()
)
METHODS = [(cls, method) for cls, methods in TABLE.items() for method in methods]
OUR_OWN = {"seed"}  # keyword-only


def parameters(method: Any) -> list[list[str]]:
    return [
        [one.name, one.kind.name, "" if one.default is one.empty else repr(one.default)]
        for one in inspect.signature(method).parameters.values()
        if one.name != "self"
    ]


def compare(theirs: list[list[str]], method: Any) -> None:
    ours = parameters(method)
    assert [one for one in ours if one[0] not in OUR_OWN] == theirs
    assert all(kind == "KEYWORD_ONLY" for name, kind, _ in ours if name in OUR_OWN)


@pytest.mark.parametrize(("cls", "method"), METHODS)
def test_arguments_equal_those_of_the_original_packages(cls: str, method: str) -> None:
    compare(TABLE[cls][method], getattr(getattr(compat, cls), method))


def test_signature_table_equals_the_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("transformers", "qwen_tts", "faster_qwen3_tts"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.syspath_prepend(ROOT / "scripts" / "official")
    script = load_script(ROOT / "scripts" / "official" / "make_signatures.py")
    assert {cls.__name__: script.describe(cls) for cls in script.CLASSES} == TABLE


def test_signature_comparison_detects_changed_default_order_and_kind() -> None:
    def method(self: Any, a: int, b: int = 2, *, seed: int | None = None) -> None: ...

    wanted = [
        ["a", "POSITIONAL_OR_KEYWORD", ""],
        ["b", "POSITIONAL_OR_KEYWORD", "2"],
    ]
    compare(wanted, method)
    others = [wanted[::-1], [wanted[0], ["b", "POSITIONAL_OR_KEYWORD", "3"]], wanted[:1]]
    for other in [*others, [wanted[0], ["b", "KEYWORD_ONLY", "2"]]]:
        with pytest.raises(AssertionError):
            compare(other, method)


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (
            "Qwen3TTSModel",
            "model processor generate_defaults device _merge_generate_kwargs _tokenize_texts "
            "_build_assistant_text _build_ref_text _build_instruct_text _validate_languages "
            "_validate_speakers _prompt_items_to_voice_clone_prompt",
        ),
        (
            "FasterQwen3TTS",
            "model device dtype max_seq_len sample_rate speech_tokenizer predictor_graph "
            "talker_graph _warmup",
        ),
    ],
)
def test_attributes_equal_those_of_the_original_packages(cls: str, names: str) -> None:
    from vivace import TTS

    model = getattr(compat, cls)(TTS.load(device="cpu"))
    assert [name for name in names.split() if not hasattr(model, name)] == []


def test_first_release_keeps_its_argument_order() -> None:
    names = [name for name, _, _ in parameters(compat.Qwen3TTSCudaGraphs.generate_voice_clone)]
    first = ("text", "language", "ref_audio", "ref_text", "max_new_tokens", "temperature")
    assert tuple(names[:9]) == (*first, "top_k", "do_sample", "repetition_penalty")
