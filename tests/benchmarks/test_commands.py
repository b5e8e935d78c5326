"""Every command of benchmarks/README.md in smoke size: tiny models, short texts, a CPU."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.benchmarks.conftest import FOLDER, Forked, Run
from tests.reliability import __main__ as reliability
from tests.support.project import ROOT, load_script
from tests.support.serving import Running
from vivace.backends.cpu.build import find_refusal, load_library
from vivace.backends.cpu.codec import pack_decoder
from vivace.checkpoint import EMBEDDED, load_codec
from vivace.engine.checkpoints import attention
from vivace.engine.limits import EngineLimits
from vivace.engine.turns.scheduler import Scheduler
from vivace.engine.utterances import follower, retry

SENTENCES = ("Yes.", "It rained.", "We stayed.", "Nobody came.")
WITHOUT_HELP = ("targets.py", "sanitized.py")  # their only arguments are positional


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("".join(f"{line}\n" for line in SENTENCES), encoding="utf-8")
    return path


class FixedJudge:
    """Replaces Whisper and DistillMOS: one transcript and one rating for every recording."""

    def __init__(self, found: object) -> None:
        self._found = found

    def __call__(self, samples: np.ndarray, sample_rate: int) -> object:
        assert samples.ndim == 1
        assert sample_rate == 24_000
        return self._found


@pytest.fixture
def fixed_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    judges = load_script(FOLDER / "judges.py")
    monkeypatch.setattr(judges, "Recogniser", lambda *_, **__: FixedJudge("It rained."))
    monkeypatch.setattr(judges, "NaturalnessJudge", lambda: FixedJudge(3.5))


@pytest.fixture
def restored_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores limits of the completeness check that two benchmarks change."""
    for module, name in (
        (retry, "MAX_RETRIES"),
        (follower, "TAIL_FRAMES"),
        (attention, "MAX_TRIES"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))


def read(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


# -- the list -----------------------------------------------------------------------------------


def documented_scripts() -> list[str]:
    """Scripts in the command columns of the README's tables."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8").partition("## Modules")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("|")]
    commands = [cell for row in rows for cell in row[1:3]]
    names = {name for cell in commands for name in re.findall(r"\b(\w+\.py)\b", cell)}
    return sorted(name for name in names if "def main" in (FOLDER / name).read_text("utf-8"))


def test_every_documented_command_has_a_test() -> None:
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    scripts = documented_scripts()
    assert len(scripts) > 20
    assert [name for name in scripts if f'"{name}"' not in tests] == []


@pytest.mark.parametrize(
    "name", [name for name in documented_scripts() if name not in WITHOUT_HELP]
)
def test_help_is_printed(name: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(name, "--help")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage:")


def test_reliability_command_prints_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tests.reliability", "--help"])
    with pytest.raises(SystemExit) as ended:
        reliability.main()
    assert ended.value.code == 0
    assert "--nightly" in capsys.readouterr().out


def test_codec_cpu_measures_pytorch_and_cpp(run: Run, tmp_path: Path) -> None:
    if (refusal := find_refusal()) is not None:
        pytest.skip(refusal)
    path = tmp_path / "codec.json"
    run("codec_cpu.py", "--shapes", "embedded", "--threads", 1, "--repeats", 1, "--json", path,
        TEXT=SENTENCES[0])  # fmt: skip
    first, *others = read(path)["results"]
    assert first["kernels"] == "pytorch"
    assert others
    for row in (first, *others):
        assert row["ms_per_frame"]["1"] > 0
    least = {"half": 35, "bf16": 24, "int8": 24}
    assert all(row["db_from_pytorch"] > least.get(row["kernels"], 80) for row in others)


def test_cpu_models_measures_all_weights(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    if (refusal := find_refusal()) is not None:
        pytest.skip(refusal)
    path = tmp_path / "models.json"
    arguments = ("--threads", 1, "--streams", 1, 2, "--frames", 2, "--json", path)
    run("cpu_models.py", tiny_folder / "custom_voice", *arguments)
    rows = read(path)["results"]
    found = [(row["weights"], row["streams"]) for row in rows]
    assert found == [("eager", 1), *((name, n) for name in ("int8", "int4") for n in (1, 2))]
    assert all(row["model_ms_per_frame"] > 0 and row["codec_ms_per_frame"] > 0 for row in rows)


def test_cpu_calls_measures_memory_and_whole_calls(
    run: Run, tiny_folder: Path, tmp_path: Path
) -> None:
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    path = tmp_path / "calls.json"
    arguments = ("--weights", "int8", "--batches", 1, 2, "--frames", 3, "--repeats", 1)
    paths = ("--out", tmp_path / "out", "--json", path)
    run("cpu_calls.py", tiny_folder / "custom_voice", *arguments, *paths, subprocess=Forked())
    [row] = read(path)["results"]
    assert row["quantize"]["peak_gb"] > 0
    assert [call["batch"] for call in row["calls"]] == [1, 2]
    assert all(call["times_real_time"] > 0 for call in row["calls"])
    for memory in row["memory_gb"].values():
        assert memory["peak"] >= memory["resident"] > memory["anonymous"] > 0


def test_gpu_script_runs_one_stage() -> None:
    command = ["bash", str(FOLDER / "gpu.sh")]
    environment = {**os.environ, "OUT": str(FOLDER / "results")}
    done = subprocess.run([*command, "targets"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert "met" in done.stdout


def test_gpu_script_reports_a_failed_command_and_runs_later_stages(tmp_path: Path) -> None:
    interpreter = tmp_path / "python3"
    interpreter.write_text("#!/bin/sh\necho no device is left\nexit 3\n", encoding="utf-8")
    interpreter.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = {**os.environ, "OUT": str(tmp_path / "out"), "PATH": path}
    command = ["bash", str(FOLDER / "gpu.sh"), "memory", "audible"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    for name in ("latency-0.6B-one-stream", "audible"):
        assert f"{name}: exit code 3" in done.stdout
        log = tmp_path / "out" / f"{name}.log"
        assert log.read_text(encoding="utf-8") == "no device is left\n"
    assert done.stdout.count("no device is left") == 2


@pytest.mark.parametrize("script", ["cpu.sh", "gpu.sh"])
def test_script_refuses_an_unknown_stage(script: str, tmp_path: Path) -> None:
    environment = {**os.environ, "OUT": str(tmp_path), "WORK": str(tmp_path)}
    command = ["bash", str(FOLDER / script), "unknown"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown stage unknown" in done.stderr


def test_cpu_script_leaves_out_what_does_not_fit(tmp_path: Path) -> None:
    environment = {**os.environ, "OUT": str(tmp_path), "WORK": str(tmp_path), "TOTAL": "1"}
    command = ["bash", str(FOLDER / "cpu.sh"), "brief"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    for name in ("cpu-calls-1.7B", "cpu-calls-0.6B", "cpu-mini-cpp", "command", "cpu-models-0.6B"):
        assert f"{name}: left out" in done.stdout


def test_cpu_summary_prints_all_tables(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("cpu_summary.py", FOLDER / "results", "--suffix=-2cores")
    printed = capsys.readouterr().out
    rows = ("| 1.7B, int4 | 2 |", "| 1.7B, int8, `cpu` | 2 |", "| int8 | 2 | 8 |", "| 1 | 0.")
    assert all(row in printed for row in rows)


@pytest.mark.parametrize("script", ["cpu.sh", "gpu.sh"])
def test_script_names_existing_files(script: str) -> None:
    paths = set(files_of(script))
    assert len(paths) > 4
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_gpu_script_runs_every_gpu_test() -> None:
    gpu_tests = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/gpu").glob("test_*.py")}
    assert gpu_tests <= set(files_of("gpu.sh"))


def files_of(script: str) -> list[str]:
    text = (FOLDER / script).read_text(encoding="utf-8")
    return re.findall(r"\b(?:tests|benchmarks)/[\w/]+\.(?:py|sh)\b", text)


# -- speed --------------------------------------------------------------------------------------


@pytest.mark.ci
def test_latency_command(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    where, size = ["--device", "cpu", "--dtype", "float32"], ["--frames", "8", "--repeats", "1"]
    path = tmp_path / "latency.json"
    run("latency.py", tiny_folder / "custom_voice", *where, *size, "--layers", "plain",
        "--batches", "1", "--json", path, CHUNKS=(4,), COMPARED=4, NUM_REPLAYS=1,
        NUM_SNR_FRAMES=16)  # fmt: skip
    [result] = read(path)["results"]
    assert result["has_same_codes_in_batch"]
    assert result["streams"]["1"]["audio_s_per_s"] > 0
    assert result["codec_snr_db"] > 100


def test_frame_command(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "frame.json"
    run("frame.py", tiny_folder / "custom_voice", "--device", "cpu", "--frames", "16",
        "--repeats", "1", "--json", path)  # fmt: skip
    [result] = read(path)["results"]
    assert result["shape"] == "tiny custom_voice"
    assert result["ms_per_frame"] > 0


def test_official_command(run: Run, tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("qwen_tts")
    config = tiny_folder / "custom_voice" / "config.json"
    run("official.py", config, "--device", "cpu", "--dtype", "float32", "--frames", "2")
    assert json.loads(capsys.readouterr().out)["ms_per_frame"] > 0


@pytest.mark.ci
def test_endurance_command(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "endurance.json"
    with pytest.raises(SystemExit) as ended:
        run("endurance.py", tiny_folder / "custom_voice", "--device", "cpu", "--backend",
            "cuda_graph", "--frames", "32", "--batch", "1", "--json", path,
            OPENING_FRAMES=12)  # fmt: skip
    assert ended.value.code == 0
    assert all(read(path)["checks"].values())


@pytest.mark.ci
def test_completeness_cost_command(run: Run, tmp_path: Path, restored_limits: None) -> None:
    path = tmp_path / "cost.json"
    run("completeness_cost.py", "embedded", "--device", "cpu", "--backend", "eager",
        "--streams", "1", "--rounds", "1", "--json", path, TEXT=SENTENCES[1])  # fmt: skip
    [row] = read(path)["rows"]
    assert row["audio_s_per_s_checked"] > 0


def test_engine_host_command(run: Run, tmp_path: Path, restored_limits: None) -> None:
    path = tmp_path / "engine-host.json"
    run("engine_host.py", "--streams", "2", "--turns", "3", "--watched", "--json", path)
    burst, steady = read(path)["rows"]
    assert (burst["load"], steady["load"]) == ("burst of 2", "steady")
    assert steady["turns"] == 3
    assert steady["us_per_turn"].keys() >= {"schedule", "prepare", "read", "render", "deliver"}


def test_stream_sweep_command(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    size = ["--streams", "2", "--frames", "4", "--rounds", "1", "--repeats", "1"]
    values = ["--share", "0.25", "--turn", "8", "16"]
    folder = tiny_folder / "custom_voice"
    run("stream_sweep.py", folder, *size, *values, "--device", "cpu", "--json", path)
    rows = read(path)["results"]
    assert [row["settings"] for row in rows] == [{}, {"share": 0.25}, {"turn": 8}, {"turn": 16}, {}]
    assert all(row["audio_s_per_s"] > 0 for row in rows)


def test_stream_sweep_replaces_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.syspath_prepend(FOLDER)
    sweep = load_script(FOLDER / "stream_sweep.py")
    settings = {"share": 0.25, "waves": 8, "pass": 256, "turn": 8, "ahead": 2}
    assert settings.keys() == sweep.CONSTANTS.keys()

    def constants() -> list[object]:
        found = [sweep.codec_operands.MANY_WAVES, sweep.step.LOOKAHEAD, sweep.codec_fused.SHARE]
        pace = Scheduler[Any](EngineLimits(), 2)._pace
        return [*found, sweep.buckets.largest_batch(8), pace.min_frames]

    before = constants()
    with sweep.applied(settings):
        assert constants() == [8, 2, 0.25, 32, 8]
    assert constants() == before
    combined = list(sweep.combined({"share": [0.5, 1], "turn": [8]}))
    assert combined == [{"share": 0.5, "turn": 8}, {"share": 1, "turn": 8}]


def test_guard_host_command(run: Run, tmp_path: Path, restored_limits: None) -> None:
    path = tmp_path / "guard-host.json"
    run("guard_host.py", "--streams", "1,2", "--rounds", "1", "--texts", "2", "--json", path)
    rows = read(path)["rows"]
    assert [(row["streams"], row["attention"]) for row in rows] == [
        (1, "steady"), (2, "steady"), (1, "random"), (2, "random"),
    ]  # fmt: skip


@pytest.mark.ci
def test_cpu_command(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    texts = [SENTENCES[1]] * 3
    run("cpu.py", "--threads", "1", "--repeats", "1", "--json", path,
        subprocess=Forked(TEXTS=texts))  # fmt: skip
    [result] = read(path)["results"]
    parts = set(result["ms_per_frame"])
    assert parts >= {"prefill", "codec"}
    assert parts >= {"talker", "predictor"} or "model" in parts  # eager, or one call of C++


class UsualBytecode:
    """Replaces `subprocess`: to compile the imported modules again takes a second."""

    DEVNULL = subprocess.DEVNULL

    @staticmethod
    def run(command: Sequence[str], *, env: dict[str, str], **options: Any) -> None:
        kept = {name: value for name, value in env.items() if name != "PYTHONPYCACHEPREFIX"}
        subprocess.run(command, **{**options, "env": kept})


@pytest.mark.ci
def test_command_command(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "command.json"
    run("command.py", "--backends", "auto", "--repeats", "1", "--json", path,
        subprocess=UsualBytecode)  # fmt: skip
    [result] = read(path)["results"]
    assert result["run"] == "auto"
    assert result["cpu_s"] == pytest.approx(result["user_s"] + result["system_s"], abs=0.002)
    assert result["cpu_s"] > 0.05


def usual_bytecode(folder: Path) -> dict[str, str]:
    """An environment without a folder for bytecode: to compile PyTorch again takes seconds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class TimelineApart(Forked):
    """The start with a timeline is a new process: it records the import of torch."""

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "is_timed" in command[-1]:
            return subprocess.run(command, **options)
        return super().run(command, **options)


@pytest.mark.ci
def test_start_command(
    run: Run, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")  # a cold start would compile for half a minute
    path, imports = tmp_path / "start.json", load_script(FOLDER / "start.py").IMPORTS
    run("start.py", tiny_folder / "custom_voice", "--device", "cpu", "--backends", "eager",
        "--repeats", "1", "--ready", "--timeline", "--json", path,
        bytecode_environment=usual_bytecode, write_bytecode=lambda _: exec(imports),
        subprocess=TimelineApart())  # fmt: skip
    [result] = read(path)["results"]
    assert result["is_equal"]
    for kind in ("cold", "warm"):
        phases = result[kind]["phases"]
        assert list(phases.values()) == sorted(phases.values())
        assert list(phases)[-2:] == ["first_audio", "ready"]
        assert set(result[kind]["parts"]) >= {"load_tokenizer", "load_model", "build_backend"}
        assert result[f"{kind}_s"] == phases["first_audio"] > phases["load"]
    spans = {span["name"]: span for span in result["timeline"]}
    whole, part = spans["tts: TTS.load"], spans["text.tokenizer: _build_bpe"]
    assert whole["begin"] < part["begin"] < part["end"] < whole["end"]
    assert {"import torch", "checkpoint.tensors: read_tensor"} <= spans.keys()


def test_start_command_fails_for_different_speech(run: Run, tiny_folder: Path) -> None:
    number = itertools.count()

    def start_process(order: dict[str, Any], cache: Path) -> dict[str, Any]:
        times = {"phases": {"first_audio": 1.0}, "parts": {}}
        return {"backend": "eager", "speech": str(next(number)), **times}

    with pytest.raises(SystemExit, match="different speech"):
        run("start.py", tiny_folder / "custom_voice", "--repeats", "1", "--device", "cpu",
            start_process=start_process, write_bytecode=lambda _: None)  # fmt: skip


@pytest.mark.ci
def test_audible_command(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "audible.json"
    run("audible.py", tiny_folder / "custom_voice", "--device", "cpu", "--backend", "eager",
        "--repeats", "1", "--seconds", "0.1", "--json", path, NUM_FRAMES=8, WARM_UP=1, PAUSE_S=0.0,
        subprocess=Forked(NUM_FRAMES=8, WARM_UP=1))  # fmt: skip
    rows = read(path)["results"]
    assert [row["silent_frames"] for row in rows] == [1, 6]
    for row in rows:
        assert row["in_process"]["p50"] > 0
        assert row["http"]["requests"] >= 1
        assert row["http"]["audible_ms"]["p95"] > 0


@pytest.mark.ci
def test_serve_command(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "serve.json"
    run("serve.py", "--streams", "1", "--frames", "4", "--repeats", "1", "--rounds", "2",
        "--device", "cpu", "--json", path)  # fmt: skip
    [result] = read(path)["results"]
    assert result["streams"] == 1
    assert "steady" in result


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")
def test_serve_command_with_workers(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "served.json"
    run("serve.py", "--workers", "2", "--clients", "2", "--streams", "2", "--frames", "4",
        "--repeats", "1", "--rounds", "2", "--live", "2", "--seconds", "1", "--device", "cpu",
        "--json", path)  # fmt: skip
    report = read(path)
    [result] = report["results"]
    assert result["steady"]["streams"] == result["streams"] == 2
    assert report["live"]["utterances"] >= 2
    assert report["workers"] == 2


def test_targets_command(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("targets.py", FOLDER / "results")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert all("met" in line or "missed" in line for line in lines[1:])


# -- words --------------------------------------------------------------------------------------


@pytest.mark.ci
def test_completeness_command(
    run: Run, fixed_judges: None, sentences: Path, tmp_path: Path
) -> None:
    path = tmp_path / "completeness.json"
    run("completeness.py", sentences, "--num", "1", "--controls", "1", "--losses", "1",
        "--pairs", "1", "--work", tmp_path / "work.jsonl", "--json", path)  # fmt: skip
    report = read(path)
    assert report["false_alarms"]["sentences"] == 1
    assert {row["of"] for row in report["controls"].values()} == {1}


def test_breaks_command(run: Run, fixed_judges: None, sentences: Path, tmp_path: Path) -> None:
    path = tmp_path / "breaks.json"
    run("breaks.py", sentences, "--pairs", "1", "--json", path)
    report = read(path)
    assert report["pairs"] == 1
    assert len(report["rows"]) == 1


def test_quality_commands(run: Run, fixed_judges: None, sentences: Path, tmp_path: Path) -> None:
    out, path, png = tmp_path / "out", tmp_path / "quality.json", tmp_path / "quality.png"
    run("quality.py", "speak", sentences, "--out", out, "--limit", "2", "--device", "cpu")
    run("quality.py", "judge", out, "--json", path)
    assert read(path)["figures"]["distillmos"] == 3.5
    run("quality.py", "table", path, "--png", png)
    assert png.read_bytes().startswith(b"\x89PNG")
    np.savez(tmp_path / "codec.npz", hard_0=np.zeros(2_400, np.int16))
    run("quality.py", "collect", tmp_path / "codec.npz", "--group", "hard", "--texts", sentences,
        "--out", tmp_path / "collected")  # fmt: skip
    assert (tmp_path / "collected" / "0000.wav").exists()
    run("pairs.py", out, out)


def test_codec_quality_command(
    run: Run, fixed_judges: None, sentences: Path, tmp_path: Path
) -> None:
    if (refusal := find_refusal()) is not None:
        pytest.skip(refusal)
    out, path = tmp_path / "out", tmp_path / "quality.json"
    codec = load_codec(EMBEDDED, torch.device("cpu"))
    exact = pack_decoder(codec.decoder, load_library(), 1, "float32").kernels
    run("codec_quality.py", "decode", sentences, "--first", 2, "--lines", 1, "--kernels", exact,
        "--out", out)  # fmt: skip
    shutil.copytree(out / exact, out / "half")
    [recording] = (out / "half").glob("*.wav")
    file = recording.read_bytes()
    quieter = 0.9 * np.frombuffer(file[44:], "<i2")  # after the header; 20 dB below the signal
    recording.write_bytes(file[:44] + quieter.astype("<i2").tobytes())
    run("codec_quality.py", "judge", out, "--kernels", exact, "half", "--json", path)
    report = read(path)
    assert report["exact"] == exact
    assert report["results"]["half"]["db"] == pytest.approx(20, abs=0.2)
    run("codec_quality.py", "judge", out, "--kernels", "half", "half", "--json", path)
    assert read(path)["results"]["half"]["db"] is None


def test_letters_command(run: Run, fixed_judges: None, tmp_path: Path) -> None:
    path = tmp_path / "letters.json"
    run("letters.py", "--texts", "1", "--json", path, SEEDS=(1,), TEXTS=("It rained.",))
    [row] = read(path)["results"]
    assert row["text"] == "It rained."
    assert row["without"] == row["with_letter_names"] == {"right": 1, "transcripts": ["It rained."]}


@pytest.mark.ci
def test_quantization_command(
    run: Run, fixed_judges: None, sentences: Path, tmp_path: Path
) -> None:
    path = tmp_path / "quantization.json"
    run("quantization.py", sentences, "--first", "2", "--lines", "1", "--forced", "1", "--out",
        tmp_path / "out", "--weights", "fp8", "int8", "--json", path)  # fmt: skip
    report = read(path)
    assert report["logits"]["texts"] == 1
    assert report["logits"]["fp8"]["kl_talker"] > report["logits"]["int8"]["kl_talker"] > 0
    assert report["speech"]["int8"]["lines"] == 1


def test_timings_command(run: Run, sentences: Path, tmp_path: Path) -> None:
    def align(words: Sequence[str], *_: object) -> list[tuple[float, float]]:
        return [(0.1 * number, 0.1 * number + 0.1) for number, _ in enumerate(words)]

    path = tmp_path / "timings.json"
    run("timings.py", sentences, "--num", "1", "--json", path, WhisperAligner=lambda: align)
    report = read(path)
    assert report["sentences"] == 1
    assert report["errors"]["vivace - whisper"]["all"]["mean_ms"] >= 0


# -- the server ---------------------------------------------------------------------------------


@pytest.mark.ci
def test_refusals_command(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "refusals.json"
    run("refusals.py", "--requests", "4", "--rounds", "1", "--json", path, subprocess=Forked())
    report = read(path)
    assert report["answers"] == 4
    assert 2 <= report["refused"] <= 4  # the slot is free between two parts of the long text


@pytest.mark.ci
def test_replicas_command(run: Run, server: Running, tmp_path: Path) -> None:
    path = tmp_path / "replicas.json"
    run("replicas.py", server.url, "--clients", "1", "--pause", "0", "--seconds", "0.2", "--title",
        "no such process", "--json", path)  # fmt: skip
    [result] = read(path)["results"]
    assert not result["hung"]
    assert result["replicas"] == {"before": 0, "after": 0}


def test_interruptions_command_names_existing_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    interruptions = load_script(FOLDER / "interruptions.py")
    for test in interruptions.TESTS:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


@pytest.mark.ci
def test_integrations_command(run: Run, tmp_path: Path) -> None:
    for package in ("pipecat", "livekit.agents", "RealtimeTTS", "speech_to_speech"):
        pytest.importorskip(package)
    path = tmp_path / "integrations.json"
    run("integrations.py", "--runs", "2", "--json", path)
    assert len(read(path)["results"]) == 6
