"""Dialogues: speech, spacing, tracks, scripts, voices and the command."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.recording_backend import watch_widths
from vivace import TTS
from vivace.audio.clip import Audio
from vivace.audio.files import read_audio
from vivace.audio.trim import sound_span
from vivace.backends.eager import EagerBackend
from vivace.cli.main import main
from vivace.dialogue.cast import FreeNames, find_cast
from vivace.dialogue.script import DialogueLine, DialogueScript
from vivace.dialogue.talk import Dialogue, LineSpacing, arrange, track_paths
from vivace.engine.dialogues import find_voices
from vivace.errors import (
    OutputExistsError,
    RequestError,
    UnknownVoiceError,
    UnsupportedRequestError,
)
from vivace.speech import Usage

RATE = 24_000
TALK = [("ryan", "Hi there."), ("vivian", "Hello! How are you?"), ("Ryan", "Good, thanks.")]
OPTIONS: dict[str, Any] = {"seed": 5, "min_frames": 4, "max_frames": 6}


@pytest.fixture(scope="module")
def tts(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as loaded:
        yield loaded


# -- speaking ----------------------------------------------------------------------------------


@pytest.mark.ci
def test_line_equals_speak_with_the_seed_of_the_line(tts: TTS) -> None:
    made = tts.dialogue(TALK, **OPTIONS)
    assert [line.speaker for line in made.lines] == ["ryan", "vivian", "ryan"]
    assert [line.text for line in made.lines] == [text for _, text in TALK]
    for number, (line, (voice, text)) in enumerate(zip(made.lines, TALK, strict=True)):
        alone = tts.speak(text, voice=voice, **{**OPTIONS, "seed": 5 + 10_000 * number})
        assert np.array_equal(line.audio.codes, alone.codes)
        assert line.audio.usage.seed == 5 + 10_000 * number
    assert made.usage.frames == len(made.codes) == sum(len(line.audio.codes) for line in made.lines)
    assert made.speakers == ["ryan", "vivian"]
    assert tts.dialogue(TALK, **OPTIONS) == made


def test_batched_lines_equal_single_lines(
    tts: TTS, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**OPTIONS, "min_frames": 20, "max_frames": 20}  # three turns
    expected = tts.dialogue(TALK, **options)
    monkeypatch.setattr(
        "vivace.engine.checkpoints.loading.build_backend",
        lambda name, model, codec, room: EagerBackend(model, codec, max_streams=3, pass_rows=4),
    )
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as together:
        widths = watch_widths(together, monkeypatch, 3)
        made = together.dialogue(TALK, **options)
    assert max(widths) == 3
    for line, other in zip(made.lines, expected.lines, strict=True):
        assert np.array_equal(line.audio.codes, other.audio.codes)


# -- while it is made ----------------------------------------------------------------------------


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(
    ("how", "lead"),
    [
        ({}, ""),
        ({"gap_s": 0.0}, "[overlap 0.1s] "),
        ({"overlap_s": 0.2}, "[pause 0.2s] "),
        ({"overlap_s": 9.0}, ""),
    ],
)
def test_streamed_dialogue_equals_the_whole(tts: TTS, how: dict[str, Any], lead: str) -> None:
    talk = [TALK[0], ("vivian", f"{lead}Hello! [pause 0.1s]"), TALK[2]]
    whole = tts.dialogue(talk, **OPTIONS, **how)
    with tts.stream_dialogue(talk, **OPTIONS, chunk_frames=1, **how) as stream:
        chunks = list(stream)
    samples = np.concatenate([chunk.samples for chunk in chunks])
    together = np.clip(np.sum(list(whole.tracks.values()), axis=0), -1, 1)
    assert np.allclose(samples, together, rtol=0, atol=5e-5)
    assert np.array_equal(np.concatenate([chunk.codes for chunk in chunks]), whole.codes)
    assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].finish_reason == stream.finish_reason == whole.finish_reason
    audio_s, reason = stream.usage.audio_s, stream.finish_reason
    assert repr(stream) == f"<DialogueStream, {audio_s:.2f} s, {reason}>"
    lengths = [len(chunk.samples) / RATE for chunk in chunks]
    starts = [0.0, *itertools.accumulate(lengths)][:-1]
    assert [chunk.start_s for chunk in chunks] == pytest.approx(starts)
    speakers = [speaker for speaker, _ in itertools.groupby(chunk.speaker for chunk in chunks)]
    assert speakers == ["ryan", "vivian", "ryan"]
    assert {(chunk.line, chunk.speaker) for chunk in chunks} == {
        (0, "ryan"), (1, "vivian"), (2, "ryan")
    }  # fmt: skip
    assert stream.usage.frames == whole.usage.frames
    assert stream.usage.text_tokens == whole.usage.text_tokens
    assert stream.usage.audio_s == pytest.approx(whole.usage.audio_s)


def wait_until_idle(tts: TTS) -> None:
    deadline = time.monotonic() + 60
    while (load := tts.engine.capacity()).num_running + load.num_waiting:
        assert time.monotonic() < deadline, "a slot is still taken"
        time.sleep(0.01)


def test_first_chunk_arrives_before_the_line_ends(tts: TTS) -> None:
    options = {**OPTIONS, "min_frames": 20, "max_frames": 20}
    with tts.stream_dialogue(TALK, **options, chunk_frames=2) as stream:
        first = next(chunk for chunk in stream if len(chunk.samples))
        assert first.line == 0
        assert stream.usage.frames < 10
    assert stream.finish_reason == "cancelled"
    wait_until_idle(tts)
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.ci
def test_next_line_is_generated_while_the_current_is_read(
    tts: TTS, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**OPTIONS, "min_frames": 20, "max_frames": 20}
    expected = [chunk.codes for chunk in tts.stream_dialogue(TALK, **options)]
    monkeypatch.setattr(
        "vivace.engine.checkpoints.loading.build_backend",
        lambda name, model, codec, room: EagerBackend(model, codec, max_streams=3, pass_rows=4),
    )
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as together:
        stream = together.stream_dialogue(TALK, **options)
        codes = [next(stream).codes]
        load = together.engine.capacity()
        assert load.num_running + load.num_waiting == 2
        codes += [chunk.codes for chunk in stream]
        left = together.stream_dialogue(TALK, **options)
        next(left)
        left.close()
        wait_until_idle(together)
    assert np.array_equal(np.concatenate(codes), np.concatenate(expected))


def test_invalid_dialogue_raises_before_its_first_chunk(tts: TTS) -> None:
    with pytest.raises(UnknownVoiceError, match="no voices named 'bob', 'zoe'"):
        tts.stream_dialogue([("ryan", "Hi."), ("bob", "Hello."), ("zoe", "Hey.")])
    with pytest.raises(RequestError, match="line 2 of the dialogue: the text is empty"):
        tts.stream_dialogue([("ryan", "Hi."), ("vivian", "")])
    with pytest.raises(RequestError, match="leave voice out"):
        tts.stream_dialogue(TALK, voice="ryan")


@pytest.mark.ci
def test_streamed_words_equal_those_of_the_whole(embedded: TTS) -> None:
    talk = [("heart", "Come in."), ("heart", "Good evening, Lee.")]
    whole = embedded.dialogue(talk, seed=7, timings=True)
    chunks = list(embedded.stream_dialogue(talk, seed=7, timings=True))
    words = [word for chunk in chunks for word in chunk.words or ()]
    assert whole.words is not None
    assert [word.text for word in words] == [word.text for word in whole.words]
    for word, expected in zip(words, whole.words, strict=True):
        assert word.start_s == pytest.approx(expected.start_s, abs=0.012)
        assert word.end_s == pytest.approx(expected.end_s, abs=0.012)


def test_names_are_resolved_by_voices_and_script(tts: TTS) -> None:
    talk = [("Anna", "Hi there."), ("ben", "Hello! How are you?"), ("anna", "Good, thanks.")]
    made = tts.dialogue(talk, voices={"anna": "ryan", "Ben": "vivian"}, **OPTIONS)
    assert made.speakers == ["Anna", "ben"]
    assert np.array_equal(made.codes, tts.dialogue(TALK, **OPTIONS).codes)


def test_cloned_voices_with_equal_names_stay_separate_speakers(tiny_folder: Path) -> None:
    time_s = np.arange(36_000) / RATE
    with TTS.load(tiny_folder / "base", device="cpu") as base:
        voices = [
            base.clone((np.float32(0.3 * np.sin(2 * np.pi * hertz * time_s)), RATE))
            for hertz in (150, 250)
        ]
        first, second = voices
        made = base.dialogue([(first, "Hi."), (second, "Hello."), (first, "So.")], **OPTIONS)
        assert made.speakers == ["cloned", "cloned-2"]
        assert [line.speaker for line in made.lines] == ["cloned", "cloned-2", "cloned"]
        alone = base.speak("Hello.", voice=second, **{**OPTIONS, "seed": 10_005})
        assert np.array_equal(made.lines[1].audio.codes, alone.codes)


# -- bad input ---------------------------------------------------------------------------------


def test_all_unknown_voices_are_listed_before_anything_is_spoken(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tts.engine, "submit", lambda _: pytest.fail("it was spoken"))
    talk = [("ryan", "Hi."), ("bob", "Hey."), ("vivian", "Hm."), ("me.wav", "So."), ("Bob", "Yes.")]
    with pytest.raises(
        UnknownVoiceError,
        match=r"line 2 of the dialogue: no voices named 'bob', 'me\.wav', 'zoe'; try one.*ryan",
    ):
        tts.dialogue([*talk, ("Carol", "Bye.")], voices={"Carol": "zoe"})


@pytest.mark.parametrize(
    ("lines", "options", "reason"),
    [
        ([], {}, "has no lines"),
        ("ryan: Hi.", {}, "a list of"),
        (5, {}, "a list of"),
        (["ryan: Hi."], {}, r"line 1 of the dialogue must be \(voice, text\)"),
        ([("ryan", "Hi.", "x")], {}, r"line 1 of the dialogue must be \(voice, text\)"),
        ([("ryan", "Hi."), ("ryan", 5)], {}, "line 2 .* must be a string, not int"),
        ([("ryan", "Hi."), (None, "Hi.")], {}, "line 2 .* not NoneType"),
        ([("ryan", "Hi."), ("vivian", " ... ")], {}, "line 2 of the dialogue: .*nothing to speak"),
        ([("ryan", "[overlap 11s] Hi.")], {}, "at most 10 seconds"),
        ([("ryan", "[pause 99s] Hi.")], {}, "line 1 of the dialogue: a pause lasts"),
        (TALK, {"voice": "ryan"}, "leave voice out"),
        (TALK, {"gap_s": -1}, "gap_s must be from 0 to 10"),
        (TALK, {"gap_s": float("nan")}, "gap_s must be from 0 to 10"),
        (TALK, {"gap_s": True}, "gap_s must be from 0 to 10"),
        (TALK, {"overlap_s": None}, "overlap_s must be from 0 to 10"),
        (TALK, {"seed": -1}, "seed must be from 0"),
        (TALK, {"sed": 1}, "no option named sed"),
    ],
)
def test_invalid_lines_are_rejected(
    tts: TTS, lines: Any, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason):
        tts.dialogue(lines, **options)
    assert tts.engine.num_running == tts.engine.num_waiting == 0


def test_voice_design_checkpoint_rejects_dialogues(tiny_folder: Path) -> None:
    with (
        TTS.load(tiny_folder / "voice_design", device="cpu") as design,
        pytest.raises(UnsupportedRequestError, match="CustomVoice"),
    ):
        design.dialogue([("a warm man", "Hi.")])


# -- script files ------------------------------------------------------------------------------

SCRIPT = """# a talk
Anna = vivian
The Narrator = ryan

Anna: Did you see: it = rain?
The Narrator： [overlap 300ms] She looked up.
    And so on: = too.

# the end
anna: Yes. [pause 0.2s] Now.
"""


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_script_has_voices_then_lines(line_end: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.txt"
    path.write_bytes(b"\xef\xbb\xbf" + SCRIPT.replace("\n", line_end).encode())
    script = DialogueScript.load(path)
    assert script.voices == {"Anna": "vivian", "The Narrator": "ryan"}
    assert [(line.speaker, line.text, line.overlap_s) for line in script.lines] == [
        ("Anna", "Did you see: it = rain?", None),
        ("The Narrator", "She looked up. And so on: = too.", 0.3),
        ("anna", "Yes. [pause 0.2s] Now.", None),
    ]
    assert [script.voice_of(line.speaker) for line in script.lines] == ["vivian", "ryan", "vivian"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no line has the form Name: text"),
        (b"# nothing\nAnna = vivian\n", "no line has the form Name: text"),
        (
            b"Anna: Hi.\nBen says hello\n",
            "line 2: expected .*found 'Ben says hello'",
        ),
        (b"Anna: Hi.\nBen = ryan\n", "line 2: expected Name: text"),
        (b"Anna:\n", "line 1: expected Name: text, Name = voice"),
        (b": Hi.\n", "line 1: expected"),
        (b"Anna = a\nanna = b\n", "line 2: 'anna' has a voice already"),
        (b"Anna: Hi.\nBen: \xff\n", "line 2: not UTF-8"),
        (b"x" * 101 + b": Hi.\n", "line 1: expected"),
        (b"Anna: [overlap 99s] Hi.\n", "line 1: an overlap lasts at most 10"),
    ],
)
def test_invalid_script_raises_with_its_line(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.txt"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=rf"talk\.txt.*{reason}"):
        DialogueScript.load(path)
    with pytest.raises(RequestError, match=r"none\.txt: cannot be read"):
        DialogueScript.load(tmp_path / "none.txt")


# -- in time -----------------------------------------------------------------------------------


def clip(seconds: float, silence_s: float = 0.3) -> Audio:
    """A tone between two silences."""
    still = np.zeros(round(silence_s * RATE), np.float32)
    tone = 0.7 * np.sin(np.arange(round(seconds * RATE)) / 20).astype(np.float32)
    usage = Usage(text_tokens=1, frames=2, audio_s=seconds, wall_s=0.1, seed=3)
    return Audio(
        samples=np.concatenate([still, tone, still]),
        sample_rate=RATE,
        codes=np.zeros((2, 16), np.int64),
        finish_reason="stop",
        usage=usage,
    )


def lay(*lines: tuple[str, str, float], **timing: Any) -> Dialogue:
    """Arrange lines of (speaker, text, seconds of sound)."""
    return arrange(
        [DialogueLine.of(speaker, text, "here") for speaker, text, _ in lines],
        [speaker for speaker, _, _ in lines],
        [clip(seconds) for _, _, seconds in lines],
        LineSpacing(**timing),
        wall_s=1.0,
    )


def sounds(made: Dialogue) -> list[tuple[float, float]]:
    """Start and end of the sound of each line, in seconds."""
    found = []
    for line in made.lines:
        first, last = sound_span(line.audio.samples, RATE)
        found.append((line.start_s + first / RATE, line.start_s + last / RATE))
    return found


def gaps(made: Dialogue) -> list[float]:
    spans = sounds(made)
    return [round(after[0] - before[1], 2) for before, after in itertools.pairwise(spans)]


def test_gaps_are_measured_from_sound_to_sound() -> None:
    talk = [("a", "One.", 0.5), ("b", "Two.", 0.5), ("b", "Three.", 0.5)]
    assert gaps(lay(*talk, gap_s=0.8)) == [0.8, 0.8]
    assert gaps(lay(*talk, gap_s=0)) == [0, 0]
    made = lay(*talk, gap_s=0.8)
    assert len(made.samples) == pytest.approx((1.5 + 1.6 + 0.1) * RATE, abs=2)
    assert made.duration_s == made.usage.audio_s
    assert sounds(made)[0][0] == pytest.approx(0.05, abs=0.001)


def test_natural_gap_depends_on_line_end_and_next_speaker() -> None:
    ends = ["Really?", "Well…", "So...", "But I—", '"Yes."', "「何？」", "Go on."]
    speakers = ["a", "b", "a", "b", "a", "b", "a", "a"]
    talk = [(who, text, 0.5) for who, text in zip(speakers, [*ends, "End."], strict=True)]
    assert gaps(lay(*talk)) == [0.25, 0.6, 0.6, 0.05, 0.35, 0.25, 0.45]


def test_only_different_speakers_overlap() -> None:
    talk = [("a", "One.", 1.0), ("b", "Two.", 1.0), ("b", "Three.", 1.0), ("a", "Four.", 0.2)]
    assert gaps(lay(*talk, overlap_s=0.4)) == [-0.4, 0.45, -0.4]
    marked = [("a", "One.", 1.0), ("b", "[overlap 0.2s] Two.", 1.0), ("a", "Three.", 1.0)]
    assert gaps(lay(*marked)) == [-0.2, 0.35]
    assert lay(*marked).lines[1].text == "Two."
    # A line starts neither before the previous line nor before its speaker's last line ends.
    assert gaps(lay(("a", "One.", 0.5), ("b", "Two.", 0.3), overlap_s=5)) == [-0.5]
    hum = ("b", "[overlap 1.5s] Hm.", 0.2)
    inside = lay(("a", "One.", 2.0), hum, hum)
    assert sounds(inside)[2][0] >= sounds(inside)[0][1]


def test_pause_marks_of_a_line_are_kept() -> None:
    plain = gaps(lay(("a", "One.", 0.5), ("b", "Two.", 0.5), gap_s=0.1))
    paused = gaps(lay(("a", "One. [pause 0.3s]", 0.5), ("b", "[pause 0.3s] Two.", 0.5), gap_s=0.1))
    assert (plain, paused) == ([0.1], [0.7])


def test_tracks_add_up_to_the_mix(tmp_path: Path) -> None:
    made = lay(("a", "One.", 0.5), ("b", "Two.", 0.5), ("a", "Three.", 0.3))
    assert list(made.tracks) == ["a", "b"]
    assert np.allclose(sum(made.tracks.values()), made.samples, atol=1e-6)
    assert not made.tracks["b"][: made.lines[1].start].any()
    loud = lay(("a", "One.", 0.5), ("b", "Two.", 0.5), overlap_s=0.5)
    assert np.abs(loud.samples).max() == pytest.approx(1.0)
    paths = made.save_tracks(tmp_path / "talk.wav")
    assert [path.name for path in paths] == ["talk-a.wav", "talk-b.wav"]
    assert {len(read_audio(path).samples) for path in paths} == {len(made.samples)}
    with pytest.raises(OutputExistsError, match="talk-a"):
        made.save_tracks(tmp_path / "talk.wav")
    assert made.save_tracks(tmp_path / "talk.wav", overwrite=True) == paths


def test_speakers_with_any_name_get_unique_files() -> None:
    names = track_paths("x/talk.mp3", ["Anna", "ANNA", "../a b", "李", "a/b", "a b"])
    assert [path.as_posix() for path in names] == [
        "x/talk-Anna.mp3",
        "x/talk-ANNA-2.mp3",
        "x/talk-.._a_b.mp3",
        "x/talk-李.mp3",
        "x/talk-a_b.mp3",
        "x/talk-a_b-2.mp3",
    ]


# -- many voices -------------------------------------------------------------------------------


class CountingName(str):
    """A string that counts all calls of `casefold`."""

    num_folded = 0

    def casefold(self) -> str:
        type(self).num_folded += 1
        return super().casefold()


def test_cast_of_6000_voices_looks_every_name_up_a_bounded_number_of_times() -> None:
    names = [CountingName(f"Speaker {number}") for number in range(6_000)]
    CountingName.num_folded = 0
    lines = [(name, "Hi.") for name in names]
    script = DialogueScript.of(lines, dict.fromkeys(names, "ryan"))
    cast, speakers = find_cast(script, ["ryan"])
    assert (len(cast), speakers) == (6_000, names)
    assert CountingName.num_folded <= 6 * len(names)


@pytest.mark.parametrize(
    "write",
    [
        lambda size: "\n".join(f"Speaker {number} = ryan" for number in range(size)),
        lambda size: f"Speaker{' ' * 10 * size}x = ryan",
    ],
    ids=["voices", "blanks"],
)
def test_script_is_parsed_in_linear_time(write: Callable[[int], str]) -> None:
    def parse(size: int) -> float:
        content = f"{write(size)}\nryan: Hi.".encode()
        began = time.process_time()
        DialogueScript.parse(content, "talk.txt")
        return max(time.process_time() - began, 0.001)

    ratios = (parse(8_000) / parse(2_000) for _ in range(4))
    assert any(ratio < 9 for ratio in ratios)  # a quadratic parser takes 16 times as long


def test_voices_of_one_name_get_numbers_without_searching() -> None:
    class Taken(set[str]):
        num_lookups = 0

        def __contains__(self, name: object) -> bool:
            self.num_lookups += 1
            return super().__contains__(name)

    names = FreeNames()
    names._taken = taken = Taken()
    assert [names.take("Ben") for _ in range(3)] == ["Ben", "Ben-2", "Ben-3"]
    for _ in range(997):
        names.take("Ben")
    assert len(taken) == 1_000
    assert taken.num_lookups <= 2 * len(taken)


def test_voice_of_many_speakers_is_found_once() -> None:
    found: list[object] = []

    def get_voice(source: Any) -> Any:
        found.append(source)
        return source

    names = [f"Speaker {number}" for number in range(100)]
    script = DialogueScript.of([(name, "Hi.") for name in names], dict.fromkeys(names, "ryan"))
    speakers, voices = find_voices(script, ["ryan"], get_voice)
    assert (speakers, found) == (names, ["ryan"])
    assert set(voices) == {"ryan"}


# -- the command -------------------------------------------------------------------------------


def say(tiny_folder: Path, *arguments: str | Path) -> int:
    model = ("say", "--model", tiny_folder / "custom_voice", "--device", "cpu")
    sampling = ("--seed", "5", "--min-frames", "4", "--max-frames", "6")
    return main([str(one) for one in (*model, *sampling, *arguments)])


def test_command_writes_a_script_and_its_tracks(
    tts: TTS, tiny_folder: Path, tmp_path: Path
) -> None:
    script, out = tmp_path / "talk.txt", tmp_path / "talk.wav"
    script.write_text("Anna = vivian\nAnna: Hi there.\nryan: Hello!\n")
    assert say(tiny_folder, "--dialogue", script, "-o", out, "--gap", "0.5", "--tracks", "-q") == 0
    made = tts.dialogue([("vivian", "Hi there."), ("ryan", "Hello!")], gap_s=0.5, **OPTIONS)
    assert np.allclose(read_audio(out).samples, made.samples, atol=1e-4)
    assert sorted(path.name for path in tmp_path.glob("*.wav")) == [
        "talk-Anna.wav",
        "talk-ryan.wav",
        "talk.wav",
    ]


def test_command_streams_a_dialogue(
    tts: TTS, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talk.txt").write_text("ryan: Hi there.\nvivian: Hello!\n")
    out = tmp_path / "talk.wav"
    script = ("--dialogue", tmp_path / "talk.txt", "-o", out, "--stream")
    assert say(tiny_folder, *script, "--chunk-frames", "2", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    made = tts.dialogue([("ryan", "Hi there."), ("vivian", "Hello!")], **OPTIONS)
    assert np.allclose(read_audio(out).samples, made.samples, atol=1e-4)
    assert facts["frames"] == made.usage.frames
    assert facts["first_audio_ms"] < 1000 * facts["wall_s"]


@pytest.mark.parametrize(
    ("script", "options", "reason"),
    [
        (
            "Zoe: Hi.\nryan: Hm.\nBob: Oh.\n",
            (),
            r"line 1: no voices named 'Zoe', 'Bob'; try one of",
        ),
        ("ryan: Hi.\nno colon\n", (), r"talk\.txt, line 2: expected Name: text"),
        ("ryan: Hi.\n", ("--gap", "11"), "gap_s must be from 0 to 10"),
        ("ryan: Hi.\n", ("--tracks",), r"x-ryan\.wav exists"),
    ],
)
def test_command_reports_an_invalid_dialogue_in_one_line(
    tiny_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    script: str,
    options: tuple[str, ...],
    reason: str,
) -> None:
    (tmp_path / "talk.txt").write_text(script)
    (tmp_path / "x-ryan.wav").write_bytes(b"mine")
    out = tmp_path / "x.wav"
    assert say(tiny_folder, "--dialogue", tmp_path / "talk.txt", "-o", out, *options) == 1
    assert re.fullmatch(rf"vivace: [^\n]*{reason}[^\n]*\n", capsys.readouterr().err)
    assert not out.exists()
    assert (tmp_path / "x-ryan.wav").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "arguments",
    [("Hello.", "--gap", "1"), ("--dialogue", "x", "Hello."), ("--dialogue", "x", "--voice", "y")],
)
def test_conflicting_options_are_rejected(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        say(tiny_folder, *arguments)
    assert "--dialogue FILE" in capsys.readouterr().err
