"""benchmarks/breaks.py detects a lost sentence and uses every kind of break."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import numpy as np
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


def test_second_look_separates_lost_from_misread_sentences(script: ModuleType) -> None:
    pair = script.plan_pair(0, SENTENCES)
    starts = (0.1, 0.3, 0.5, 0.7, 2.1, 2.3, 2.5, 2.7)  # of eight words, four in each sentence
    audio = SimpleNamespace(
        samples=np.arange(300), sample_rate=100, words=[SimpleNamespace(start_s=s) for s in starts]
    )

    def look(second: str) -> dict[str, object]:
        def recognise(samples: np.ndarray, _: int) -> str:
            assert samples[0] in (0, 200)
            return second if samples[0] else "The dog ran away."

        return script.recognise_parts(recognise, audio, pair)

    assert look("Nobody saw it go.")["shares"] == [1.0, 1.0]
    assert script.summarise([pair.as_row() | look("No pony so low.")])["misread_sentences"] == 1
    assert script.summarise([pair.as_row() | look("No pony so low.")])["lost_sentences"] == 0
    assert script.summarise([pair.as_row() | look("Hm.")])["lost_sentences"] == 1
