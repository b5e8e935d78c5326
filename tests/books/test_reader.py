"""Tests of speaking a book into segments and of writing the audiobook."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import pytest

from tests.support import fork_server
from tests.support.project import ROOT
from tests.support.scripted_tts import Plan, ScriptedSpeech
from vivace import TTS
from vivace.audio.loudness import LoudnessMeter
from vivace.books.book import Book, Chapter, Paragraph
from vivace.books.open import open_book
from vivace.books.output import choose_output
from vivace.books.reader import BookReader, WorkFolder, work_path
from vivace.books.segments import Segment, split_book
from vivace.errors import AudioError, RequestError, RunawayError
from vivace.options import SpeakOptions
from vivace.serve.settings import ModelSpec

SPEC = ModelSpec("scripted", None)
RUN_KILLED_READER = "from tests.support.killed_reader import main; main()"


@pytest.fixture(autouse=True, scope="module")
def codebooks() -> Iterator[None]:
    """Use six codebooks, as the embedded voice does; they matter for texts with pauses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.scripted_tts.NUM_CODEBOOKS", 6)
        yield


def make_book(num_chapters: int, num_paragraphs: int, num_words: int = 8) -> Book:
    return Book(
        title="A Book",
        author="Nobody",
        chapters=tuple(
            Chapter(
                f"Chapter {number}",
                (
                    Paragraph(f"Chapter {number}", is_heading=True),
                    *(Paragraph(f"{i}. " + "word " * num_words) for i in range(num_paragraphs)),
                ),
            )
            for number in range(num_chapters)
        ),
    )


def open_work(path: Path, tts: TTS, segments: list[Segment]) -> WorkFolder:
    return WorkFolder.open(work_path(path), tts.sample_rate, {"seed": 1}, segments)


def make(tts: TTS, book: Book, path: Path, **chosen: Any) -> WorkFolder:
    segments = split_book(book)
    work = open_work(path, tts, segments)
    for _ in BookReader(tts, work, SpeakOptions(seed=1)).read(segments):
        pass
    output = choose_output(
        path,
        book,
        **{"format": None, "loudness": -18.0, "force": False, "bit_rate": None, **chosen},
    )
    output.write(book, segments, work)
    return work


# -- interrupted readers -----------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_killed_reader_continues_to_identical_book(tmp_path: Path) -> None:
    text = "".join(
        f"Chapter {number}\n\n" + "".join(f"Word {i} of {number} is here.\n\n" for i in range(9))
        for number in range(1, 4)
    )
    (tmp_path / "book.txt").write_text(text)
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{RUN_KILLED_READER}"
    done = fork_server.run(code, str(tmp_path / "book.txt"), str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    statuses = [line["status"] for line in lines if "status" in line]
    assert statuses == [0, *[signal.SIGKILL] * 2, 0]
    whole, rest = (line for line in lines if "spoken" in line)
    assert whole["spoken"] == whole["missing"] == 30
    assert rest["spoken"] == rest["missing"]  # finished segments are not spoken again
    assert 0 < rest["missing"] < 30
    assert lines[-1]["hidden"] == 0  # temporary files of killed processes are removed
    assert (tmp_path / "killed.m4b").read_bytes() == (tmp_path / "whole.m4b").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("book.txt", "killed.m4b", "whole.m4b"),
    ]


# -- reader ------------------------------------------------------------------------------------


def test_progress_reports_characters_and_time_left(tmp_path: Path) -> None:
    segments = split_book(make_book(2, 12))
    with ScriptedSpeech(default=Plan(2)).load(SPEC) as tts:
        work = open_work(tmp_path / "b.m4b", tts, segments)
        found = list(BookReader(tts, work, SpeakOptions(seed=1)).read(segments))
        again = list(BookReader(tts, work, SpeakOptions(seed=1)).read(segments))
    assert found[0].left_s is None
    assert all(each.left_s is not None for each in found[1:])
    done = [each.num_done for each in found]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, found[0].num_chars)
    assert {each.chapter for each in found} == {0, 1}
    assert [(each.num_done, each.left_s) for each in again] == [(done[-1], 0.0)]


class EndlessSpeech(ScriptedSpeech):
    """Speech that never ends with the given seeds."""

    seeds: tuple[int, ...] = ()

    def admit(self, prompt: Any, sampling: Any) -> int:
        self.default = Plan(never_ends=True) if sampling.seed in self.seeds else Plan(2)
        return super().admit(prompt, sampling)


def test_passage_that_does_not_end_is_retried_with_other_seeds(tmp_path: Path) -> None:
    book = make_book(1, 1)
    backend = EndlessSpeech()
    with backend.load(SPEC) as tts:
        backend.seeds = (1, 1_000_004)
        work = make(tts, book, tmp_path / "a.wav")
        assert work.num_samples(split_book(book)[0]) < 10 * 24_000
        backend.seeds = tuple(1 + 1_000_003 * number for number in range(4))
        with pytest.raises(RunawayError, match="'Chapter 0': the speech did not end in 4 attempts"):
            make(tts, book, tmp_path / "b.wav")


class IncompleteTTS:
    """Reports a missing word for every text, unless the seed is in `complete_seeds`."""

    def __init__(self, tts: TTS, complete_seeds: tuple[int, ...] = ()) -> None:
        self.tts, self.complete_seeds = tts, complete_seeds
        self.seeds: list[int] = []
        self.engine, self.sample_rate = tts.engine, tts.sample_rate
        self.synthesizer = self

    def speak(self, text: Any, options: SpeakOptions) -> Any:
        if isinstance(text, list):
            return [self.speak(each, options) for each in text]
        audio = self.tts.synthesizer.speak(text, options)
        self.seeds.append(options.sampling["seed"])
        words = () if options.seed in self.complete_seeds else ("word",)
        usage = dataclasses.replace(audio.usage, missing_words=words)
        return dataclasses.replace(audio, usage=usage)


@pytest.mark.parametrize(
    ("complete_seeds", "missing", "num_attempts"),
    [((1,), [], 1), ((1_000_004,), [], 2), ((), ["word"], 4)],
)
def test_passage_with_missing_words_is_retried_with_other_seeds(
    tmp_path: Path, tts: TTS, complete_seeds: tuple[int, ...], missing: list[str], num_attempts: int
) -> None:
    incomplete = IncompleteTTS(tts, complete_seeds)
    book = Book(title="x", chapters=(Chapter("x", (Paragraph("One word."),)),))
    segments = split_book(book)
    work = open_work(tmp_path / "a.wav", tts, segments)
    for _ in BookReader(cast(TTS, incomplete), work, SpeakOptions(seed=1)).read(segments):
        pass
    assert incomplete.seeds == [1 + 1_000_003 * number for number in range(num_attempts)]
    again = open_work(tmp_path / "a.wav", tts, segments)  # as after an interruption
    assert again.missing_words(segments[0]) == missing


def test_passage_without_words_is_silent(tmp_path: Path) -> None:
    paragraphs = (Paragraph("One."), Paragraph("* * *"), Paragraph("🙂"))
    book = Book(title="x", chapters=(Chapter("x", paragraphs),))
    backend = ScriptedSpeech(default=Plan(5))
    with backend.load(SPEC) as tts:
        before = backend.num_admitted
        work = make(tts, book, tmp_path / "a.wav")
    assert backend.num_admitted - before == 1
    assert (
        work.num_samples(split_book(book)[0])
        > (5 * 0.08 + 2 * 0.6 + 2 * 0.6 + 2.0) * 24_000 - 5_000
    )


def test_locked_work_folder_rejects_second_process(tmp_path: Path, tts: TTS) -> None:
    segments = split_book(make_book(1, 1))
    first, second = (open_work(tmp_path / "b.m4b", tts, segments) for _ in range(2))
    with (
        first.locked(),
        pytest.raises(RequestError, match="in use by another process"),
        second.locked(),
    ):
        pass
    with second.locked():
        pass


def test_folder_that_is_no_work_folder_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "b.m4b.parts").mkdir()
    (tmp_path / "b.m4b.parts" / "mine.txt").write_text("keep")
    with (
        ScriptedSpeech().load(SPEC) as tts,
        pytest.raises(RequestError, match="not a work folder of a book"),
    ):
        make(tts, make_book(1, 1), tmp_path / "b.m4b")
    assert (tmp_path / "b.m4b.parts" / "mine.txt").read_text() == "keep"


@pytest.mark.ci
@pytest.mark.parametrize("num_chars", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_book_length(
    tmp_path: Path, num_chars: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivace.books.segments.MAX_SEGMENT_CHARS", 100)
    peaks, num_paragraphs = [], num_chars // 50
    with ScriptedSpeech(default=Plan(100), max_streams=2).load(SPEC) as tts:
        make(tts, make_book(1, 2), tmp_path / "first.wav")  # imports modules
        for count in (num_paragraphs // 4, num_paragraphs):
            path = tmp_path / f"{count}.wav"
            tracemalloc.start()
            make(tts, make_book(1, count), path)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]  # of four times the text
    assert path.stat().st_size > 1.5 * peaks[1]  # control: the audio alone needs more


# -- files -------------------------------------------------------------------------------------


def loudness(path: Path) -> float:
    with av.open(str(path)) as file:
        rate = file.streams.audio[0].rate
        meter = LoudnessMeter(rate)
        for frame in file.decode(audio=0):
            samples = frame.to_ndarray()[0].astype(np.float64)
            meter.process(samples / (32_768 if "s16" in frame.format.name else 1))
    return meter.integrated


@pytest.fixture(scope="module")
def tts() -> Any:
    with ScriptedSpeech(default=Plan(12)).load(SPEC) as loaded:
        yield loaded


def test_m4b_has_all_chapters_at_requested_loudness(tmp_path: Path, tts: TTS) -> None:
    work = make(tts, make_book(3, 2), tmp_path / "b.m4b")
    segments = split_book(make_book(3, 2))
    with av.open(str(tmp_path / "b.m4b")) as file:
        titles = [each["metadata"]["title"] for each in file.chapters()]
        ends = [float(each["end"] * each["time_base"]) for each in file.chapters()]
    assert titles == ["Chapter 0", "Chapter 1", "Chapter 2"]
    lengths = [work.num_samples(segment) / 24_000 for segment in segments]
    assert ends == pytest.approx(np.cumsum(lengths), abs=0.002)
    assert loudness(tmp_path / "b.m4b") == pytest.approx(-18.0, abs=0.3)


def test_folder_output_has_one_file_per_chapter(tmp_path: Path, tts: TTS) -> None:
    make(tts, make_book(2, 2), tmp_path / "out")
    files = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in files] == ["01 Chapter 0.mp3", "02 Chapter 1.mp3"]
    with av.open(str(files[1])) as file:
        tags = {name: file.metadata[name] for name in ("title", "album", "artist", "track")}
    assert tags == {"title": "Chapter 1", "album": "A Book", "artist": "Nobody", "track": "2/2"}
    assert loudness(files[0]) == pytest.approx(-18.0, abs=0.5)


def test_pattern_output_names_files(tmp_path: Path, tts: TTS) -> None:
    make(tts, make_book(2, 1), tmp_path / "{n:03}.wav", loudness=-23.0)
    assert sorted(path.name for path in tmp_path.glob("*.wav")) == ["001.wav", "002.wav"]
    assert loudness(tmp_path / "001.wav") == pytest.approx(-23.0, abs=0.5)


@pytest.mark.parametrize(
    "name",
    ["{x}.mp3", "{n.mp3", "{title[0]}.mp3"],
)
def test_invalid_pattern_raises_request_error(name: str) -> None:
    options: dict[str, Any] = {"format": None, "loudness": -18.0, "force": False, "bit_rate": None}
    with pytest.raises(RequestError, match=r"only \{n\} and \{title\} are allowed"):
        choose_output(Path(name), make_book(2, 1), **options)
    with pytest.raises(RequestError, match="same file name"):
        choose_output(Path("{title:.3}.mp3"), make_book(2, 1), **options)
    with pytest.raises(AudioError, match=r"'book\.doc': unknown file extension"):
        choose_output(Path("book.doc"), make_book(1, 1), **options).check(24_000)


def test_chapter_title_cannot_leave_output_folder(tmp_path: Path) -> None:
    paragraphs = (Paragraph("One."),)
    titles = ("../../etc/passwd", "a/b\\c", "..", "con:\n*?")
    book = Book(title="x", chapters=tuple(Chapter(title, paragraphs) for title in titles))
    output = choose_output(
        tmp_path / "out", book, format="wav", loudness=-18.0, force=False, bit_rate=None
    )
    assert {path.parent for path in output.paths} == {tmp_path / "out"}


def test_open_book_takes_title_from_file_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One.")
    assert open_book(tmp_path / "a.txt").chapters[0].title == "a"
