"""Tests of exit codes, warnings and JSON of commands with missing words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_harness import Captured, run_here
from tests.support.scripted_attention import Course, FollowedBackend, correct, early_end
from vivace.cli.messages import INCOMPLETE, describe_missing
from vivace.engine.utterances.retry import MAX_RETRIES, retry_seed
from vivace.recogniser import Verification
from vivace.speech import Usage, total_completeness

TEXT = "Seven grey herons stood beside the old canal."
LOST = ["stood", "beside", "the", "old", "canal."]
SEED = 7


def lose(places: list[int]) -> list[int]:
    """Speech that ends after half of the text, and immediately in a retry."""
    return early_end(places) if places and places[0] == 0 else []


def use(monkeypatch: pytest.MonkeyPatch, **options: Any) -> FollowedBackend:
    backend = FollowedBackend(**options)
    monkeypatch.setattr("vivace.engine.checkpoints.loading.build_backend", lambda *_: backend)
    return backend


def courses_of(seed: int, course: Course) -> dict[int, Course]:
    return {retry_seed(seed, number): course for number in range(MAX_RETRIES + 1)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_say_with_missing_words_exits_3_and_lists_them(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, options: list[str]
) -> None:
    use(monkeypatch, default=lose)
    assert run_here("say", TEXT, "-o", "out.wav", *options) == INCOMPLETE
    warning = capsys.readouterr().err.splitlines()[-1]
    assert warning.startswith("vivace: out.wav: words not spoken: 'stood', 'beside', 'the', 'old'")
    assert Path("out.wav").exists()


def test_say_after_repair_exits_0_without_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    use(monkeypatch, courses={SEED: early_end})
    assert run_here("say", TEXT, "-o", "out.wav", "--seed", str(SEED), "--json") == 0
    report = capsys.readouterr()
    facts = json.loads(report.out)
    assert (facts["completeness"], facts["missing_words"], facts["retries"]) == (1.0, [], 1)
    assert facts["is_complete"]
    assert "not spoken" not in report.err


def test_json_report_lists_all_missing_words(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    use(monkeypatch, default=lose)
    assert run_here("say", TEXT, "-o", "out.wav", "--json") == INCOMPLETE
    facts = json.loads(capsys.readouterr().out)
    assert (facts["missing_words"], facts["retries"]) == (LOST, MAX_RETRIES)
    assert facts["completeness"] == pytest.approx(3 / 8)
    assert (facts["finish_reason"], facts["is_complete"]) == ("stop", False)


def test_speech_cut_at_max_frames_exits_0_with_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    use(monkeypatch)
    assert run_here("say", TEXT, "-o", "out.wav", "--max-frames", "10") == 0
    warning = capsys.readouterr().err.splitlines()[-1]
    assert "cut at --max-frames 10" in warning


def test_batch_exit_code_is_that_of_worst_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def lose_long(places: list[int]) -> list[int]:
        is_short = places[:1] == [0] and len(places) < 20
        return places if is_short else lose(places)

    use(monkeypatch, default=lose_long)
    Path("lines.txt").write_text(f"{TEXT}\nHerons.\n")
    assert run_here("say", "--batch", "lines.txt", "-o", "out", "--json") == INCOMPLETE
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    missing = {row["line"]: row["missing_words"] for row in rows}
    assert missing[1] == LOST
    assert missing[2] == []


def test_dialogue_with_missing_words_exits_3(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    use(monkeypatch, default=lose)
    Path("talk.txt").write_text(f"heart: {TEXT}\nmichael: Herons are grey birds.\n")
    for options in ([], ["--stream", "--force"]):
        assert run_here("say", "--dialogue", "talk.txt", "-o", "talk.wav", "--json", *options) == 3
        facts = json.loads(capsys.readouterr().out)
        assert facts["missing_words"][:5] == LOST
        assert "birds." in facts["missing_words"]
        assert 0 < facts["completeness"] < 1


def test_read_retries_incomplete_passage_with_another_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    backend = use(monkeypatch, courses=courses_of(1, lose))
    Path("book.txt").write_text(f"Chapter 1\n\n{TEXT}\n")
    assert run_here("read", "book.txt", "-o", "book.wav", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["missing_words"] == []
    assert len({sampling.seed for _, sampling in backend.admitted}) > MAX_RETRIES + 1


def test_read_with_missing_words_exits_3_also_when_resumed(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    use(monkeypatch, default=lose)
    Path("book.txt").write_text(f"Chapter 1\n\n{TEXT}\n\n* * *\n\nChapter 2\n\nMore herons came.\n")
    options = ["book.txt", "-o", "book.wav", "--keep-parts", "--force"]
    assert run_here("read", *options) == INCOMPLETE
    assert "not spoken: " in capsys.readouterr().err
    backend = use(monkeypatch, default=correct)
    assert run_here("read", *options, "--json") == INCOMPLETE
    facts = json.loads(capsys.readouterr().out)
    assert set(LOST) <= set(facts["missing_words"])
    assert not backend.admitted  # all segments come from the work folder


def test_warning_lists_at_most_five_words() -> None:
    assert describe_missing([]) is None
    assert describe_missing(["one"]) == "words not spoken: 'one'; try another --seed"
    words = describe_missing(list("abcdefg"))
    assert words == "words not spoken: 'a', 'b', 'c', 'd', 'e' and 2 more; try another --seed"


def test_total_completeness_is_weighted_by_words() -> None:
    base: dict[str, Any] = {"frames": 1, "audio_s": 1.0, "wall_s": 1.0, "seed": 1}
    one = Usage(text_tokens=9, completeness=1.0, num_words=30, **base)
    two = Usage(text_tokens=9, completeness=0.5, num_words=10, **base)
    silent = Usage(text_tokens=0, **base)
    unknown = Usage(text_tokens=9, **base)
    assert total_completeness([one, two, silent]) == pytest.approx(35 / 40)
    assert total_completeness([one, unknown]) is None
    assert total_completeness([silent]) is None


def test_verify_reports_transcript_and_word_error_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    use(monkeypatch)
    monkeypatch.setattr("vivace.cli.say.check_recogniser", lambda: None)
    verification = Verification("Seven grey herons", 0.625)
    monkeypatch.setattr("vivace.cli.speak.Verifier.verify", lambda *_: verification)
    assert run_here("say", TEXT, "-o", "out.wav", "--verify", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["transcript"], facts["word_error_rate"]) == ("Seven grey herons", 0.625)
    assert run_here("say", TEXT, "-o", "out.wav", "--verify", "--force") == 0
    assert "word error rate 62 %" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--stream"], ["--batch", "lines.txt"]])
def test_verify_without_whole_text_is_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, options: list[str]
) -> None:
    monkeypatch.setattr("vivace.cli.say.check_recogniser", lambda: None)
    text = [] if "--batch" in options else [TEXT]
    with pytest.raises(SystemExit):
        run_here("say", *text, "-o", "out.wav", "--verify", *options)
    assert "--verify" in capsys.readouterr().err
