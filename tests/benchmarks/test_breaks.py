"""benchmarks/breaks.py detects a lost sentence and uses every kind of break."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.support.project import ROOT, load_script


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return load_script(ROOT / "benchmarks" / "breaks.py")


SENTENCES = ["The dog ran away.", "Nobody saw it go.", "We stayed.", "It rained."] * 20


def test_sentence_missing_in_transcript_counts_as_lost(script: ModuleType) -> None:
    pair = script.plan_pair(0, SENTENCES)
    whole = pair.as_row() | script.judge(pair, "the dog ran away nobody saw it go")
    cut = pair.as_row() | script.judge(pair, "The dog ran away.")
    assert script.summarise([whole])["lost_sentences"] == 0
    assert script.summarise([whole, cut])["lost_sentences"] == 1
    assert cut["shares"] == [1.0, 0.0]


def test_pairs_use_every_break_for_known_and_live_text(script: ModuleType) -> None:
    pairs = [script.plan_pair(number, SENTENCES) for number in range(2 * len(script.KINDS))]
    assert {(pair.kind, pair.is_live) for pair in pairs} == {
        (kind, is_live) for kind in script.KINDS for is_live in (False, True)
    }
    for pair in pairs:
        assert len(script.KINDS[pair.kind](*pair.texts).split()) >= 4
