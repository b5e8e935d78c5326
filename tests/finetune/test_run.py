"""Whole runs on tiny checkpoints: outputs, reports, interruptions and resume."""

from __future__ import annotations

import csv
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from tests.finetune.recordings import SENTENCES, tone, wav_bytes, write_ljspeech
from tests.support.tiny import Tiny
from vivace import TTS
from vivace.adapter import Adapter
from vivace.cli.main import main
from vivace.errors import (
    AdapterError,
    CheckpointError,
    TrainingDataError,
    UnknownLanguageError,
)
from vivace.finetune import output, setup, speech_judge
from vivace.finetune.options import DataOptions, TrainOptions
from vivace.finetune.request import FinetuneRequest
from vivace.finetune.run import FinetuneResult, finetune
from vivace.finetune.state import Judgement

LoadTiny = Callable[[str], Tiny]
OPTIONS = TrainOptions(epochs=2, rank=4, learning_rate=2e-3, rows_per_batch=96, rows_per_step=96)
NO_CHECK = DataOptions(language="english", check_transcripts=False)


class Quiet:
    """A reporter that keeps all reports; it may raise at a step."""

    def __init__(self, stop_at: int | None = None, stop_at_note: str | None = None) -> None:
        self.notes: list[str] = []
        self.epochs: list[Judgement] = []
        self.num_steps, self._stop_at, self._stop_at_note = 0, stop_at, stop_at_note

    def progress(self, stage: str, done: int, total: int) -> None: ...

    def step(self, epoch: int, loss: float, share: float, left_s: float) -> None:
        self.num_steps += 1
        if self.num_steps == self._stop_at:
            signal.raise_signal(signal.SIGINT)

    def epoch(self, judgement: Judgement, is_best: bool) -> None:
        self.epochs.append(judgement)

    def warn(self, text: str) -> None:
        self.note(text)

    def note(self, text: str) -> None:
        self.notes.append(text)
        if self._stop_at_note is not None and self._stop_at_note in text:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples as long as the recording: the tiny model does not end them earlier."""
    monkeypatch.setattr(speech_judge, "RUNAWAY_FACTOR", 1)


@pytest.fixture
def request_(tiny: LoadTiny, tmp_path: Path) -> FinetuneRequest:
    return FinetuneRequest(
        data=write_ljspeech(tmp_path / "data", seconds=1.0),
        output=tmp_path / "me.safetensors",
        model=str(tiny("base").checkpoint.folder),
        name="me",
        recordings=NO_CHECK,
        training=OPTIONS,
        device="cpu",
        samples=1,
        licence="CC0",
        consent="the speaker agreed",
    )


def run(request: FinetuneRequest, reporter: Quiet | None = None) -> FinetuneResult:
    return finetune(request, reporter or Quiet())


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path)


def test_run_writes_an_adapter_that_speaks_and_a_report(request_: FinetuneRequest) -> None:
    result = run(request_)
    losses = [one.total for one in result.history]
    assert len(losses) == 3
    assert min(losses[1:]) < losses[0]
    assert result.best_epoch == losses.index(min(losses[1:]))
    info = Adapter.load(result.output).info
    assert (info.name, info.licence, info.consent) == ("me", "CC0", "the speaker agreed")
    assert info.data_sha256 == result.data["data_sha256"]
    assert info.base == "base"  # the name of the folder without its path
    assert info.loss == pytest.approx(min(losses[1:]))
    with TTS.load(request_.model, device="cpu", adapter=result.output) as tts:
        assert tts.speakers == ["me"]
        assert len(tts.speak("Hello.", max_frames=5).samples) > 0
    report = result.report.read_text()
    for text in ("polyline", "epoch-002-0.wav", "the speaker agreed", "(best)"):
        assert text in report
    assert (request_.folder / "samples" / "epoch-002-0.wav").stat().st_size > 1_000
    assert not (request_.folder / "current.safetensors").exists()


def test_interrupted_run_resumes_to_the_same_adapter(
    request_: FinetuneRequest, tmp_path: Path
) -> None:
    request = replace(request_, samples=0)
    whole = run(request)
    num_steps = Adapter.load(whole.output).info.steps
    expected, history = weights(whole.output), [one.losses for one in whole.history]
    cut = replace(request, output=tmp_path / "cut.safetensors")
    for stop_at in (1, 4):  # within an epoch, at different places
        with pytest.raises(KeyboardInterrupt):
            run(cut, Quiet(stop_at))
        assert not cut.output.exists()
        with pytest.raises(TrainingDataError, match="unfinished run"):
            run(replace(cut, resume=False))
        cut = replace(cut, resume=True)
    resumed = run(cut)
    assert Adapter.load(resumed.output).info.steps == num_steps
    assert [one.losses for one in resumed.history] == history
    found = weights(resumed.output)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_interrupt_while_an_epoch_is_judged_speaks_no_more(
    request_: FinetuneRequest, tmp_path: Path
) -> None:
    request = replace(request_, training=replace(OPTIONS, epochs=1))
    expected = weights(run(request).output)
    cut = replace(request, output=tmp_path / "cut.safetensors")
    stopped = Quiet(stop_at_note="speaking held-out")
    with pytest.raises(KeyboardInterrupt):
        run(cut, stopped)
    assert [one.epoch for one in stopped.epochs] == [0]
    assert not (cut.folder / "samples").exists()
    resumed = Quiet()
    found = weights(run(replace(cut, resume=True), resumed).output)
    assert resumed.num_steps == 0
    assert [one.epoch for one in resumed.epochs] == [1]
    assert (cut.folder / "samples" / "epoch-001-0.wav").exists()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


class Crash(Exception):
    """Ends a run as a killed process does: nothing is saved."""


class Crashing(Quiet):
    """Raises Crash at a step, before the state is saved."""

    def __init__(self, crash_at: int) -> None:
        super().__init__()
        self._crash_at = crash_at

    def step(self, epoch: int, loss: float, share: float, left_s: float) -> None:
        super().step(epoch, loss, share, left_s)
        if self.num_steps == self._crash_at:
            raise Crash


def finetune_command(request: FinetuneRequest) -> list[str]:
    """`vivace finetune` with the data, the options and the output of a request."""
    return ["finetune", str(request.data), "--model", str(request.model), "--name", "me",
            "-o", str(request.output), "--device", "cpu",
            "--samples", "0", "--no-check-transcripts", "--language", "english",
            "--epochs", "2", "--rank", "4", "--learning-rate", "2e-3",
            "--rows-per-batch", "96", "--rows-per-step", "96", "--save-every", "0.0001",
            "--threads", "1"]  # fmt: skip


def test_crashed_run_resumes_from_its_last_state(
    request_: FinetuneRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = replace(request_, samples=0, threads=1)
    complete = Quiet()
    expected = weights(run(request, complete).output)
    cut = replace(request, output=tmp_path / "cut.safetensors", save_every_s=0.0)
    with pytest.raises(Crash):
        run(cut, Crashing(3))
    assert not cut.output.exists()
    capsys.readouterr()
    assert main([*finetune_command(cut), "--resume", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["best_epoch"] >= 1
    assert "resumed at epoch 0, step 2" in captured.err
    assert Adapter.load(cut.output).info.steps == complete.num_steps > 3
    found = weights(cut.output)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow  # two processes; the test above ends a run at a step of its own
def test_killed_run_resumes_from_its_last_state(
    request_: FinetuneRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = replace(request_, samples=0, threads=1)
    expected = weights(run(request).output)
    killed = replace(request, output=tmp_path / "killed.safetensors")
    process = subprocess.Popen(
        [sys.executable, "-m", "vivace", *finetune_command(killed)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr:
        assert any("epoch 1:" in line for line in process.stderr)
        process.kill()
        process.wait()
    assert not killed.output.exists()
    assert main([*finetune_command(killed), "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best_epoch"] >= 1
    found = weights(killed.output)
    # Another process may round differently; a lost optimizer state or step changes weights by 1e-3.
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-4)


def test_resume_with_other_data_or_options_is_refused(request_: FinetuneRequest) -> None:
    request = replace(request_, samples=0, training=replace(OPTIONS, epochs=1))
    with pytest.raises(TrainingDataError, match="nothing to resume"):
        run(replace(request, resume=True))
    assert not request.folder.exists()  # no recording was prepared
    run(request)
    again = replace(request, resume=True)
    with pytest.raises(TrainingDataError, match="other data, options"):
        run(replace(again, training=replace(OPTIONS, epochs=2)))
    with pytest.raises(TrainingDataError, match="other data, options"):
        run(replace(again, recordings=replace(NO_CHECK, loudness=-20.0)))
    best = request.folder / "best.safetensors"
    best.rename(best.with_name("moved"))
    with pytest.raises(AdapterError, match="no such file"):
        run(again)
    best.with_name("moved").rename(best)
    (request.data / "wavs" / "000.wav").write_bytes(wav_bytes(tone(1.9, hertz=700)))
    with pytest.raises(TrainingDataError, match="other data, options"):
        run(again)
    (request.folder / "state.safetensors").write_bytes(b"broken")
    with pytest.raises(TrainingDataError, match="damaged"):
        run(again)


@pytest.mark.parametrize("full", [False, True])
def test_folder_as_output_is_a_merged_checkpoint(
    request_: FinetuneRequest, tmp_path: Path, full: bool
) -> None:
    training = replace(OPTIONS, epochs=1, full=full)
    request = replace(request_, output=tmp_path / "merged", training=training, samples=0)
    result = run(request)
    with TTS.load(result.output, device="cpu") as tts:
        assert (tts.model_type, tts.speakers) == ("custom_voice", ["me"])
        merged = tts.speak("Hello.", max_frames=6, temperature=0).codes
    best = request.folder / "best.safetensors"
    with TTS.load(request.model, device="cpu", adapter=best, dtype="float32") as tts:
        adapted = tts.speak("Hello.", max_frames=6, temperature=0).codes
    assert len(merged) == len(adapted)  # weights are rounded to bfloat16 in the checkpoint
    with pytest.raises(TrainingDataError, match="exists"):
        replace(request, resume=True)


def test_several_speakers_and_voice_design(
    tiny: LoadTiny, request_: FinetuneRequest, tmp_path: Path
) -> None:
    folder = request_.data
    rows = [
        {"audio": f"wavs/{n:03d}.wav", "text": SENTENCES[n], "speaker": ("ann", "bob")[n % 2],
         "language": "english"}
        for n in range(8)
    ]  # fmt: skip
    path = folder / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    training = replace(OPTIONS, epochs=1)
    request = replace(
        request_, data=path, name=None, training=training, samples=0,
        model=str(tiny("custom_voice_projected").checkpoint.folder),
    )  # fmt: skip
    result = run(request)
    assert list(Adapter.load(result.output).info.speakers) == ["ann", "bob"]
    designs = [{"audio": row["audio"], "text": row["text"], "instruct": "warm"} for row in rows]
    designs.append({"audio": "wavs/000.wav", "text": "No description."})
    path.write_text("\n".join(map(json.dumps, designs)))
    design = replace(
        request, model=str(tiny("voice_design").checkpoint.folder),
        output=tmp_path / "design.safetensors",
    )  # fmt: skip
    result = run(design)
    assert Adapter.load(result.output).info.speakers == {}
    with (design.folder / "rejected.csv").open() as file:
        assert [row["reason"] for row in csv.DictReader(file)] == [
            "no instruct; a voice_design checkpoint needs a description"
        ]
    with TTS.load(design.model, device="cpu", adapter=result.output) as tts:
        assert tts.model_type == "voice_design"


def test_known_speaker_of_the_checkpoint_is_trained_on(
    tiny: LoadTiny, request_: FinetuneRequest
) -> None:
    model = str(tiny("custom_voice").checkpoint.folder)
    training = replace(OPTIONS, epochs=1)
    result = run(replace(request_, model=model, name="ryan", training=training, samples=0))
    adapter = Adapter.load(result.output)
    assert adapter.info.speakers == {}
    with TTS.load(model, device="cpu", adapter=result.output) as tts:
        assert "ryan" in tts.speakers


def test_name_that_no_recording_has_is_refused_before_training(request_: FinetuneRequest) -> None:
    row = {"audio": "wavs/000.wav", "text": SENTENCES[0], "speaker": "ann"}
    path = request_.data / "data.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(TrainingDataError, match=r"--name is me, .* names the speaker .*: ann;"):
        run(replace(request_, data=path))
    assert not (request_.folder / "recordings.jsonl").exists()


def test_quantized_checkpoint_is_refused(request_: FinetuneRequest, tmp_path: Path) -> None:
    folder = str(tmp_path / "int8")
    assert main(["quantize", str(request_.model), "-o", folder, "--weights", "int8"]) == 0
    with pytest.raises(TrainingDataError, match="quantized weights, which cannot be trained"):
        run(replace(request_, model=folder))


def test_command_prints_how_to_speak(
    tiny: LoadTiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, model = write_ljspeech(tmp_path / "data", 2), str(tiny("base").checkpoint.folder)
    output = tmp_path / "my voice.safetensors"
    quick = ["--epochs", "1", "--samples", "0", "--device", "cpu", "--no-check-transcripts"]
    command = ["finetune", str(data), "--model", model, "--name", "me", "-o", str(output), *quick]
    assert main(command) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    spoken = shlex.split(last)[1:]
    assert spoken == ["vivace", "--model", model, "--adapter", str(output), "Hello."]
    assert "<h1>Fine-tuning of " in (tmp_path / "my voice.finetune" / "report.html").read_text()


def test_output_that_cannot_be_written_is_one_error(
    request_: FinetuneRequest, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TrainingDataError, match="cannot be written"):
        run(replace(request_, output=tmp_path / "file" / "me.safetensors"))


def test_folder_with_the_name_of_the_adapter_is_refused_before_any_work(
    request_: FinetuneRequest,
) -> None:
    request_.output.mkdir()
    with pytest.raises(TrainingDataError, match="exists; choose another name"):
        replace(request_)
    with pytest.raises(TrainingDataError, match="File name too long"):
        run(replace(request_, output=Path(f"{'n' * 250}.safetensors")))


def test_merged_checkpoint_on_a_full_disk_is_one_error(
    request_: FinetuneRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    training = replace(OPTIONS, epochs=1)
    request = replace(request_, output=tmp_path / "merged", training=training, samples=0)
    with monkeypatch.context() as patch:
        patch.setattr(output, "save_file", fail)
        with pytest.raises(CheckpointError, match=r"cannot write .*No space left"):
            run(request)
    assert not list(tmp_path.glob(".merged*"))
    assert run(replace(request, resume=True)).output.is_dir()


def test_unknown_language_is_refused_before_any_recording_is_read(
    request_: FinetuneRequest,
) -> None:
    with pytest.raises(UnknownLanguageError, match="no language named 'klingon'"):
        run(replace(request_, recordings=replace(NO_CHECK, language="klingon")))
    assert not request_.folder.exists()


def test_unchecked_transcripts_of_unknown_language_give_a_warning(
    request_: FinetuneRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "_recogniser", lambda options: lambda samples, rate: "not called")
    options = replace(NO_CHECK, language="auto", check_transcripts=True)
    training = replace(OPTIONS, epochs=1)
    request = replace(request_, samples=0, recordings=options, training=training)
    reporter = Quiet()
    report = run(request, reporter).report.read_text()
    assert any("not checked: 8, because their language" in note for note in reporter.notes)
    assert "<td>transcripts checked</td><td><code>0</code>" in report


def test_recordings_with_one_transcript_give_a_note(request_: FinetuneRequest) -> None:
    (request_.data / "metadata.csv").write_text("".join(f"{n:03d}|a text|bob\n" for n in range(8)))
    request = replace(request_, samples=0, training=replace(OPTIONS, epochs=1))
    reporter = Quiet()
    run(request, reporter)
    assert any("8 of 8 recordings have the transcript 'bob'" in note for note in reporter.notes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "No Name"}, "cannot name a voice"),
        ({"samples": -1}, "--samples"),
        ({"licence": "x" * 2_000}, "at most 1,000"),
        ({"training": replace(OPTIONS, full=True)}, "give -o a folder"),
        ({"save_every_s": float("nan")}, "--save-every"),
        ({"save_every_s": -1.0}, "--save-every"),
        ({"threads": 0}, "threads must be from 1 to 1024"),
        ({"output": Path("me.pt")}, "the file of an adapter ends with .safetensors"),
    ],
)
def test_invalid_request_is_refused_before_any_work(
    request_: FinetuneRequest, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(request_, **changes)


def test_folders_of_runs_follow_the_whole_name_of_a_merged_checkpoint(
    request_: FinetuneRequest,
) -> None:
    names = ("me.safetensors", "ME.SAFETENSORS", "me-0.6b", "me-0.7b")
    found = [replace(request_, output=Path(name)) for name in names]
    assert [one.is_merged for one in found] == [False, False, True, True]
    folders = [one.folder.name for one in found]
    assert folders == ["me.finetune", "ME.finetune", "me-0.6b.finetune", "me-0.7b.finetune"]


def test_limit_of_the_seed_is_written_with_all_digits() -> None:
    with pytest.raises(TrainingDataError, match="--seed must be from 0 to 9,223,372,036,854,775,8"):
        TrainOptions(seed=-1)


@pytest.mark.parametrize(
    "values",
    [{"rank": 0}, {"epochs": 0}, {"learning_rate": 0.0}, {"learning_rate": float("nan")},
     {"targets": ("everything",)}, {"targets": ()}, {"rows_per_batch": 1}, {"streamed": 2.0},
     {"seed": -1}],
)  # fmt: skip
def test_options_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(TrainingDataError):
        TrainOptions(**values)


def test_command_reports_bad_data_in_one_line(
    tiny: LoadTiny,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = write_ljspeech(tmp_path / "one", 1)
    model = str(tiny("base").checkpoint.folder)
    command = ["finetune", str(folder), "--model", model, "--name", "me", "--device", "cpu"]
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--no-check-transcripts"]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "1 of 1 recordings can be used, and at least 2 are needed" in error
    assert (tmp_path / "me.finetune" / "rejected.csv").exists()
    assert main(["finetune", str(tmp_path / "gone"), "--model", model, "--name", "me"]) == 1
    assert "no such folder or file" in capsys.readouterr().err
    assert main(["finetune", str(folder), "--model", model]) == 1
    assert "give --name" in capsys.readouterr().err
    (tmp_path / "me.safetensors").write_bytes(b"kept")
    assert main(command) == 1
    assert "me.safetensors exists; choose another name" in capsys.readouterr().err
    assert main([*command, "--force", "--no-check-transcripts"]) == 1
    assert "at least 2 are needed" in capsys.readouterr().err


def test_embedded_voice_refuses_audio_but_trains_on_codes(
    request_: FinetuneRequest, tmp_path: Path
) -> None:
    request = replace(request_, model=None, samples=0)
    with pytest.raises(TrainingDataError, match="no trained encoder"):
        run(request)
    rows = [
        {"text": text, "language": "english", "audio_codes": [[n] * 6] * 20}
        for n, text in enumerate(SENTENCES[:3])
    ]
    path = tmp_path / "codes.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    training = replace(OPTIONS, epochs=1)
    result = run(replace(request, data=path, training=training))
    with TTS.load(device="cpu", adapter=result.output) as tts:
        assert tts.loaded.writer.default_voice == "me"
        assert tts.speakers == ["heart", "me", "michael"]
