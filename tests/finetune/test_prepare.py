"""Preparing recordings: every kind of bad data is rejected with its reason before training."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.finetune.recordings import SENTENCES, tone, wav_bytes, write_ljspeech
from tests.support.tiny import Tiny
from vivace.adapter import free_speaker_ids, with_speakers
from vivace.audio.loudness import LoudnessMeter
from vivace.audio.sandbox import Sandbox
from vivace.errors import AudioError, TrainingDataError
from vivace.finetune.encoder import Recognise, RecordingEncoder
from vivace.finetune.examples import ExampleWriter, Transcript
from vivace.finetune.options import DataOptions
from vivace.finetune.prepare import Clip, Preparation, PreparedData, split
from vivace.finetune.recordings import RecordingReader
from vivace.finetune.sources import Defaults, read_rows
from vivace.finetune.store import Encoded, EncodedStore

LoadTiny = Callable[[str], Tiny]
ENGLISH = DataOptions(language="english")


@dataclass
class Preparer:
    """Prepares folders for the tiny Base checkpoint."""

    tiny: Tiny
    store: Path
    recognise: Recognise | None = None
    options: DataOptions = ENGLISH

    def __call__(self, data: Path) -> PreparedData:
        config = self.tiny.checkpoint.config
        ids = free_speaker_ids(config, ["me"])
        writer = ExampleWriter(with_speakers(config, ids), self.tiny.tokenizer, ids)
        with Sandbox(max_children=1) as sandbox, EncodedStore(self.store) as store:
            encoder = RecordingEncoder(
                self.tiny.model,
                self.tiny.codec,
                RecordingReader(self.options, sandbox),
                store,
                self.recognise,
            )
            rows = read_rows(data, Defaults("me", self.options.language))
            preparation = Preparation(self.options, writer, encoder)
            return preparation.run(data, rows, lambda *_: None)


@pytest.fixture
def prepare(tiny: LoadTiny, tmp_path: Path) -> Preparer:
    return Preparer(tiny("base"), tmp_path / "store.jsonl")


def reason_of(data: PreparedData, where: str) -> str:
    return next(one.reason for one in data.rejections if where in one.where)


def add(folder: Path, name: str, content: bytes, text: str = "One more sentence here.") -> None:
    (folder / "wavs" / f"{name}.wav").write_bytes(content)
    with (folder / "metadata.csv").open("a", encoding="utf-8") as file:
        file.write(f"{name}|{text}\n")


def number_of_line(folder: Path) -> str:
    return f":{len((folder / 'metadata.csv').read_text().splitlines())}"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"RIFF....WAVEnothing", "WAV"),
        (b"not audio at all" * 50, "unknown audio format"),
        (b"fLaC" + bytes(200), "cannot be decoded"),
        (wav_bytes(np.zeros(0, np.float32)), "empty"),
        (wav_bytes(np.zeros(48_000, np.float32)), "silent"),
        (wav_bytes(tone(2, 8_000), 8_000), "8,000 Hz; at least 16,000 Hz"),
        (wav_bytes(tone(0.3)), "too short"),
        (wav_bytes(tone(0.5)), "0.50 s of speech"),
        (wav_bytes(tone(40)), "40.00 s of speech"),
        (wav_bytes(np.sign(tone(2)).astype(np.float32)), "clipped"),
        (wav_bytes(np.stack([tone(2), -tone(2)], axis=1)), "silent"),
        (wav_bytes(np.stack([tone(2)] * 3, axis=1)), "3 channels"),
        (wav_bytes(tone(2))[:60_000], "truncated: 36,044 bytes"),
    ],
    ids=["empty", "damaged", "text", "flac", "no-samples", "silent", "8kHz", "tiny", "short",
         "long", "clipped", "antiphase", "three", "truncated"],
)  # fmt: skip
def test_bad_recording_is_rejected_with_its_reason(
    prepare: Preparer, tmp_path: Path, content: bytes, reason: str
) -> None:
    folder = write_ljspeech(tmp_path / "data", 4)
    add(folder, "bad", content)
    data = prepare(folder)
    assert len(data.train) + len(data.held_out) == 4
    found = reason_of(data, number_of_line(folder))
    assert reason in found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Hm.", "characters a second"),
        ("A very long text that no one reads so fast. " * 8, "characters a second"),
        ("...", "no words"),
        ("One. [pause 2s] Two.", "pauses"),
        ("ภาษาไทย", "letter"),
        ("x" * 200_000, "the limit is"),
    ],
)
def test_transcript_that_cannot_fit_is_rejected(
    prepare: Preparer, tmp_path: Path, text: str, reason: str
) -> None:
    folder = write_ljspeech(tmp_path / "data", 8)
    add(folder, "bad", wav_bytes(tone(2, hertz=500)), text)
    data = prepare(folder)
    assert len(data.train) + len(data.held_out) == 8
    assert reason in reason_of(data, number_of_line(folder))


def test_stereo_other_rates_and_formats_are_used(prepare: Preparer, tmp_path: Path) -> None:
    folder = write_ljspeech(tmp_path / "data", 4)
    add(folder, "stereo", wav_bytes(np.stack([tone(2, hertz=90)] * 2, axis=1)), SENTENCES[4])
    add(folder, "rate", wav_bytes(tone(2, 44_100, 95), 44_100), SENTENCES[5])
    data = prepare(folder)
    assert not data.rejections
    assert len(data.train) + len(data.held_out) == 6


def test_same_recording_is_used_once(prepare: Preparer, tmp_path: Path) -> None:
    folder = write_ljspeech(tmp_path / "data", 4)
    add(folder, "copy", (folder / "wavs" / "001.wav").read_bytes())
    data = prepare(folder)
    assert "the same recording as metadata.csv:2" in reason_of(data, number_of_line(folder))


@pytest.mark.parametrize("num", [1, 0])
def test_too_few_recordings_raise_with_all_reasons(
    prepare: Preparer, tmp_path: Path, num: int
) -> None:
    folder = write_ljspeech(tmp_path / "data", num)
    for name in ("a", "b"):
        add(folder, name, wav_bytes(np.zeros(48_000, np.float32)))
    with pytest.raises(TrainingDataError, match=f"{num} of {num + 2} recordings") as caught:
        prepare(folder)
    assert "2 × no speech" in str(caught.value)


def test_wrong_transcript_is_found_by_the_recogniser(prepare: Preparer, tmp_path: Path) -> None:
    folder = write_ljspeech(tmp_path / "data", 4)
    transcripts = iter([*SENTENCES[:3], "Something else entirely different"])
    prepare.recognise = lambda samples, rate: next(transcripts)
    data = prepare(folder)
    assert len(data.train) + len(data.held_out) == 3
    assert (
        "100% word errors; the recogniser's transcript is 'Something else"
        in data.rejections[0].reason
    )


def test_recordings_are_encoded_once(prepare: Preparer, tmp_path: Path) -> None:
    folder = write_ljspeech(tmp_path / "data", 3)
    first = prepare(folder)
    content = prepare.store.read_bytes()
    lines = content.splitlines(keepends=True)
    prepare.store.write_bytes(b"".join(lines[:2]) + lines[2][:40])  # killed while writing
    second = prepare(folder)
    assert prepare.store.read_bytes() == content
    assert second.sha256 == first.sha256
    assert [one.codes.tolist() for one in second.train] == [
        one.codes.tolist() for one in first.train
    ]
    prepare.options = replace(prepare.options, loudness=-30.0)
    prepare(folder)
    assert len(prepare.store.read_bytes().splitlines()) == 6


def test_recording_is_trimmed_and_has_the_loudness(tmp_path: Path) -> None:
    quiet = np.zeros(24_000, np.float32)
    samples = np.concatenate([quiet, 0.03 * tone(2), quiet])
    (tmp_path / "a.wav").write_bytes(wav_bytes(samples))
    with Sandbox(max_children=1) as sandbox:
        recording = RecordingReader(DataOptions(), sandbox).read(tmp_path / "a.wav")
    assert recording.duration_s == pytest.approx(2.18, abs=0.05)
    meter = LoudnessMeter(recording.sample_rate)
    meter.process(recording.samples)
    assert meter.integrated == pytest.approx(-23.0, abs=0.5)


def make_clip(text: str, digest: str, speaker: str | None = None) -> Clip:
    return Clip(
        where=digest,
        transcript=Transcript(text=text, speaker=speaker),
        codes=np.zeros((2, 16), np.int64),
        seconds=1.0,
        sha256=digest,
    )


def test_split_depends_on_texts_only_and_keeps_repeats_together() -> None:
    clips = [make_clip(f"Sentence {n // 2}.", str(n)) for n in range(200)]
    train, held_out = split(clips, 0.1)
    assert 20 <= len(held_out) <= 22
    assert not {one.transcript.text for one in train} & {one.transcript.text for one in held_out}
    again, _ = split(clips[::-1], 0.1)
    assert {one.sha256 for one in again} == {one.sha256 for one in train}
    more = [*clips, make_clip("Another sentence.", "x")]
    assert len({one.sha256 for one in split(more, 0.1)[1]} & {one.sha256 for one in held_out}) > 17


@pytest.mark.parametrize("texts", [["a", "b"], ["a", "a"], ["a", "a", "b"]])
def test_split_of_few_recordings_has_both_sides(texts: list[str]) -> None:
    train, held_out = split([make_clip(text, str(n)) for n, text in enumerate(texts)], 0.05)
    assert train
    assert held_out


def test_split_leaves_every_speaker_a_recording_to_train_on() -> None:
    for few in range(20):  # whichever hash is the smallest
        clips = [make_clip(f"Sentence {n}.", str(n), "ann") for n in range(20)]
        clips[few] = make_clip(f"Sentence {few}.", str(few), "bob")
        train, held_out = split(clips, 0.3)
        assert len(held_out) == 6
        assert {one.transcript.speaker for one in train} == {"ann", "bob"}
    same = [make_clip("One.", str(n), speaker) for n, speaker in enumerate(("ann", "ann", "bob"))]
    train, held_out = split(same, 0.05)
    assert [one.transcript.speaker for one in train] == ["ann", "bob"]
    assert [one.transcript.speaker for one in held_out] == ["ann"]


def test_median_of_the_rates_is_computed_once(
    prepare: Preparer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    medians: list[int] = []

    def median(rates: list[float]) -> float:
        medians.append(len(rates))
        return sorted(rates)[len(rates) // 2]

    monkeypatch.setattr(statistics, "median", median)
    codes = np.full((20, 16), 1)
    rows = [{"audio_codes": (codes + n).tolist(), "text": f"Sentence {n}."} for n in range(20)]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    prepare(path)
    assert medians == [20]


def test_file_over_the_limit_is_rejected_without_reading_it(
    prepare: Preparer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_ljspeech(tmp_path / "data", 4)
    add(folder, "huge", b"RIFF")
    os.truncate(folder / "wavs" / "huge.wav", 100 << 20)
    read_bytes = Path.read_bytes

    def read(path: Path) -> bytes:
        assert path.name != "huge.wav"
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    data = prepare(folder)
    assert "larger than the limit of 64 MiB" in reason_of(data, number_of_line(folder))


def test_store_on_a_full_disk_raises_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    path = tmp_path / "store.jsonl"
    monkeypatch.setattr(EncodedStore, "_read", lambda store: None)
    path.symlink_to("/dev/full")
    with pytest.raises(TrainingDataError, match="No space left"), EncodedStore(path) as store:
        store.put("key", Encoded(problem="silent"))


def test_codes_of_the_official_preparation_are_used(prepare: Preparer, tmp_path: Path) -> None:
    rows = [{"audio_codes": np.full((20, 16), n).tolist(), "text": SENTENCES[n]} for n in range(3)]
    rows.append({"audio_codes": np.full((20, 16), 64).tolist(), "text": SENTENCES[4]})
    rows.append({"audio_codes": np.full((20, 8), 1).tolist(), "text": SENTENCES[5]})
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    data = prepare(path)
    assert len(data.train) + len(data.held_out) == 3
    assert [one.where for one in data.rejections] == ["data.jsonl:4", "data.jsonl:5"]


def test_silence_after_loudness_raises_audio_error() -> None:
    from vivace.audio.files import Recording

    recording = Recording(samples=tone(0.2), sample_rate=24_000, sha256="")
    with Sandbox(max_children=1) as sandbox, pytest.raises(AudioError, match="too short"):
        RecordingReader(DataOptions(), sandbox).prepare(recording)
