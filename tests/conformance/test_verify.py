"""`vivace verify` with tiny checkpoints and the embedded voice, whole and damaged."""

from __future__ import annotations

import dataclasses
import getpass
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vivace.checkpoint import EMBEDDED
from vivace.cli.main import main
from vivace.conformance import checks, record
from vivace.conformance.golden import load_golden, save_golden
from vivace.conformance.report import failed_row

KINDS = ("base", "custom_voice", "voice_design")
EAGER = ("--backend", "eager", "--dtype", "float32", "--device", "cpu")
CODEC_FILE = "speech_tokenizer/model.safetensors"

NUM_FRAMES, NUM_BACKEND_FRAMES = 6, 4  # of a request; each one takes 20 ms

Rows = dict[str, str]  # status by the name of the check

unshared = pytest.mark.usefixtures("unshared_weights")  # the weights are used once


@pytest.fixture(autouse=True)
def few_backend_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.NUM_BACKEND_FRAMES > NUM_BACKEND_FRAMES
    monkeypatch.setattr(checks, "NUM_BACKEND_FRAMES", NUM_BACKEND_FRAMES)


@pytest.fixture(scope="session")
def golden(session_folder: Path, tiny_folder: Path) -> Callable[[str], Path]:
    """The recorded values of a tiny checkpoint, made once."""

    def find(kind: str) -> Path:
        path = session_folder / f"golden-{kind}.npz"
        if not path.exists():
            whole = path.with_name(f"{path.stem}-{id(find)}.npz")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(record, "MAX_FRAMES", NUM_FRAMES)
                assert main(["verify", str(tiny_folder / kind), "--record", str(whole)]) == 0
            whole.replace(path)
        return path

    return find


def run(folder: Path, golden: Path, report: Path, *options: str) -> tuple[int, dict[str, Any]]:
    arguments = ["verify", str(folder), "--golden", str(golden), "--json", str(report), *options]
    return main(arguments), json.loads(report.read_text())


def statuses(report: dict[str, Any]) -> Rows:
    rows = [*report["token_rows"], *(row for one in report["runs"] for row in one["rows"])]
    return {row["check"]: row["status"] for row in rows}


def damage(folder: Path, target: Path, file: str, part: str) -> Path:
    """A copy of a checkpoint in which one tensor is changed."""
    shutil.copytree(folder, target)
    tensors = load_file(target / file)
    name = next(name for name in sorted(tensors) if part in name)
    tensors[name] = (tensors[name].float().flip(0) * 1.5 + 0.1).to(tensors[name].dtype)
    save_file(tensors, target / file)
    return target


@pytest.mark.parametrize("kind", KINDS)
def test_unchanged_checkpoint_passes_all_rows(
    kind: str, tiny_folder: Path, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    code, report = run(tiny_folder / kind, golden(kind), tmp_path / "report.json")
    assert code == 0
    assert report["is_ok"] is True
    assert {row["status"] for row in report["token_rows"]} == {"ok"}
    [reference, *others] = report["runs"]
    assert (reference["backend"], reference["dtype"]) == ("eager", "float32")
    assert {row["status"] for row in reference["rows"]} == {"ok"}
    codes = [row for row in reference["rows"] if row["check"].startswith("codes")]
    assert len(codes) == (2 if kind != "voice_design" else 1)
    assert all(row["values"]["equal"] == row["values"]["codes"] > 0 for row in codes)
    assert all(one["frame_ms"] and one["load_s"] > 0 for one in (reference, *others))


TOKENS, TEXT, TALKER, FIRST, REST, CODEC = (
    "token ids",
    "text vectors",
    "talker,",
    "codebook 0",
    "codebooks",
    "codec,",
)
CASES = [  # file, part of a tensor's name, first row that differs, rows that stay
    ("model.safetensors", "text_projection.linear_fc1.weight", TEXT, (TOKENS, TALKER, CODEC)),
    ("model.safetensors", "talker.model.layers.0.mlp", TALKER, (TOKENS, TEXT, CODEC)),
    ("model.safetensors", "talker.codec_head", FIRST, (TOKENS, TEXT, TALKER, REST, CODEC)),
    (
        "model.safetensors",
        "code_predictor.model.layers.0.mlp",
        REST,
        (TOKENS, TEXT, TALKER, FIRST, CODEC),
    ),
    (CODEC_FILE, "decoder.pre_transformer.layers", CODEC, (TOKENS, TEXT, TALKER, FIRST, REST)),
    (CODEC_FILE, "decoder.decoder.1.block.1", "codec, samples", (TOKENS, TEXT, FIRST, REST)),
]


@unshared
@pytest.mark.parametrize(("file", "part", "found_by", "untouched"), CASES)
def test_changed_tensor_is_found_by_its_row(
    file: str,
    part: str,
    found_by: str,
    untouched: tuple[str, ...],
    tiny_folder: Path,
    golden: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    broken = damage(tiny_folder / "custom_voice", tmp_path / "broken", file, part)
    code, report = run(broken, golden("custom_voice"), tmp_path / "report.json", *EAGER)
    rows = statuses(report)
    assert code == 1
    assert report["is_ok"] is False
    assert "differs" in {rows[name] for name in rows if name.startswith(found_by)}
    assert {rows[name] for name in rows if name.startswith(untouched)} == {"ok"}


@unshared
@pytest.mark.parametrize(
    ("file", "part", "found_by"),
    [
        ("model.safetensors", "code_predictor.lm_head.3.weight", "scores,"),
        ("model.safetensors", "speaker_encoder.fc.weight", "speaker encoder"),
        (CODEC_FILE, "encoder.downsample.conv.weight", "codec encoder"),
    ],
)
def test_scaled_tensor_is_found_by_its_row_alone(
    file: str,
    part: str,
    found_by: str,
    tiny_folder: Path,
    golden: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """A head that is scaled keeps all choices of greedy speech; encoders are not used by speech."""
    broken = tmp_path / "broken"
    shutil.copytree(tiny_folder / "base", broken)
    tensors = load_file(broken / file)
    [name] = [name for name in tensors if part in name]
    tensors[name] = 2 * tensors[name]  # exact, so that no choice changes by rounding
    save_file(tensors, broken / file)
    code, report = run(broken, golden("base"), tmp_path / "report.json", *EAGER)
    rows = statuses(report)
    assert code == 1
    differing = {name for name in rows if rows[name] == "differs"}
    assert differing
    assert all(name.startswith(found_by) for name in differing), differing
    if found_by == "scores,":
        row = next(row for row in report["runs"][0]["rows"] if row["check"] in differing)
        assert "of codebook 4" in row["result"]


def test_golden_file_without_scores_and_encoders_is_compared(
    tiny_folder: Path, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    [one] = load_golden(golden("base"))
    requests = [dataclasses.replace(each, scores=None) for each in one.requests]
    older = tmp_path / "older.npz"
    former = dataclasses.replace(one, requests=requests, encoders=None, tokenizer_digest=None)
    save_golden([former], older)
    code, report = run(tiny_folder / "base", older, tmp_path / "report.json", *EAGER)
    assert code == 0
    added = ("scores", "speaker encoder", "all ids")
    assert not any(name.startswith(added) for name in statuses(report))


def test_changed_config_is_named(
    tiny_folder: Path,
    golden: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_folder / "base", broken)
    config = json.loads((broken / "config.json").read_text())
    config["talker_config"]["rope_theta"] = 5_000
    (broken / "config.json").write_text(json.dumps(config))
    assert main(["verify", str(broken), "--golden", str(golden("base"))]) == 2
    assert "this one has talker.rope_theta 5000, not 1000000" in capsys.readouterr().err


@unshared
@pytest.mark.parametrize(("swapped", "is_spoken"), [("ez", True), ("XQ", False)])
def test_changed_vocabulary_is_found_by_its_rows(
    tiny_folder: Path,
    golden: Callable[[str], Path],
    tmp_path: Path,
    swapped: str,
    is_spoken: bool,
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_folder / "custom_voice", broken)
    vocab = json.loads((broken / "vocab.json").read_text())
    first, second = list(swapped)
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (broken / "vocab.json").write_text(json.dumps(vocab))
    code, report = run(broken, golden("custom_voice"), tmp_path / "report.json", *EAGER)
    rows = statuses(report)
    assert code == 1
    assert rows["all ids"] == "differs"
    tokens = {rows[name] for name in rows if name.startswith("token ids")}
    assert tokens == {"differs" if is_spoken else "ok"}
    others = (name for name in rows if not name.startswith(("all ids", "token ids", "codes")))
    assert {rows[name] for name in others} == {"ok"}


def test_bfloat16_run_reports_agreement_per_codebook(
    tiny_folder: Path, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    options = ("--dtype", "bfloat16", "--backend", "eager", "--device", "cpu")
    _, report = run(tiny_folder / "base", golden("base"), tmp_path / "report.json", *options)
    [only] = report["runs"]
    assert only["dtype"] == "bfloat16"
    rows = {row["check"]: row for row in only["rows"]}
    residual = next(row for name, row in rows.items() if name.startswith("codebooks"))
    assert len(residual["values"]["codebooks"]) == int(residual["check"].split()[3].rstrip(","))
    assert not any(row["is_required"] for name, row in rows.items() if name.startswith("codes,"))
    assert any(name.startswith("frames") for name in rows)


@unshared
def test_quantized_checkpoint_is_compared_and_not_recorded(
    tiny_folder: Path,
    golden: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "int8"
    source = str(tiny_folder / "custom_voice")
    assert main(["quantize", source, "-o", str(folder), "--weights", "int8"]) == 0
    _, report = run(folder, golden("custom_voice"), tmp_path / "report.json", *EAGER)
    [only] = report["runs"]
    assert only["weights"] == "int8"
    assert not any(row["is_required"] for row in only["rows"] if row["check"].startswith("codes,"))
    assert main(["verify", str(folder), "--record", str(tmp_path / "new.npz")]) == 1
    assert "full weights" in capsys.readouterr().err


def test_request_that_fails_is_not_run_and_exits_with_1(
    tiny_folder: Path, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    [one] = load_golden(golden("custom_voice"))
    requests = [dataclasses.replace(each, preset="nobody") for each in one.requests[:1]]
    changed = tmp_path / "changed.npz"
    save_golden([dataclasses.replace(one, requests=requests)], changed)
    folder, path = tiny_folder / "custom_voice", tmp_path / "report.json"
    code, report = run(folder, changed, path, *EAGER)
    assert code == 1
    failed = [row for row in report["runs"][0]["rows"] if row["status"] == "not run"]
    assert {row["result"] for row in failed} == {"UnknownVoiceError"}
    assert statuses(report)["codec, samples"] == "ok"


def test_changed_code_is_found_with_its_frame(
    tiny_folder: Path, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    [one] = load_golden(golden("voice_design"))
    [request] = one.requests
    codes = request.codes.copy()
    codes[-1, -1] ^= 1
    changed = tmp_path / "changed.npz"
    save_golden(
        [dataclasses.replace(one, requests=[dataclasses.replace(request, codes=codes)])], changed
    )
    folder, path = tiny_folder / "voice_design", tmp_path / "report.json"
    code, report = run(folder, changed, path, *EAGER)
    assert code == 1
    row = next(row for row in report["runs"][0]["rows"] if row["check"] == "codes, design")
    assert row["status"] == "differs"
    assert row["values"] == {
        "equal": codes.size - 1,
        "codes": codes.size,
        "first_difference": len(codes) - 1,
    }


def test_embedded_voice_passes_the_shipped_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    assert main(["verify", "mini", *EAGER, "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "0.6B-Base: not recorded for this checkpoint" in out
    assert "ms per frame" in out
    text = path.read_text()
    report = json.loads(text)
    assert report["sets"] == ["embedded voice"]
    assert report["machine"]["torch"] == torch.__version__
    assert set(statuses(report).values()) == {"ok"}
    private = (getpass.getuser(), str(Path.home()), str(EMBEDDED), str(tmp_path))
    assert not any(f'"{name}' in text or f"{name}/" in text for name in private)


@pytest.mark.parametrize("target", ["-", "/proc/self/fd/1"])
def test_report_on_stdout_replaces_the_table(
    target: str,
    tiny_folder: Path,
    golden: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--golden", str(golden("voice_design")), "--json", target, *EAGER]
    capsys.readouterr()  # of the recording
    assert main(["verify", str(tiny_folder / "voice_design"), *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["is_ok"] is True
    assert not list(tmp_path.iterdir())


def test_checkpoint_without_golden_values_exits_with_2(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tiny_folder / "base")]) == 2
    captured = capsys.readouterr()
    assert "--record" in captured.err
    assert captured.out == ""


def test_set_of_another_kind_is_not_recorded_for_the_checkpoint(
    tiny_folder: Path, golden: Callable[[str], Path]
) -> None:
    assert main(["verify", str(tiny_folder / "base"), "--golden", str(golden("voice_design"))]) == 2


def test_existing_file_is_not_overwritten(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "golden.npz"
    path.write_bytes(b"kept")
    assert main(["verify", str(tiny_folder / "base"), "--record", str(path)]) == 1
    assert "cannot write" in capsys.readouterr().err
    assert path.read_bytes() == b"kept"


@pytest.mark.parametrize("option", ["--record", "--json"])
def test_missing_folder_is_reported_before_the_model_is_loaded(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "missing" / "file")
    assert main(["verify", "no-such-model", option, target]) == 1
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"{}\n", b"\x93NUMPY", b"PK\x03\x04 damaged"])
def test_other_file_is_rejected_as_golden(
    content: bytes, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "golden.npz"
    path.write_bytes(content)
    assert main(["verify", str(tiny_folder / "base"), "--golden", str(path)]) == 1
    error = capsys.readouterr().err
    assert "is not a golden file" in error
    assert "pickle" not in error


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@unshared
@pytest.mark.parametrize(
    ("file", "reason", "num_runs"),
    [
        ("model.safetensors", "model.safetensors is damaged or not safetensors", 2),
        ("vocab.json", "vocab.json is not JSON", 2),
        ("config.json", "config.json is not JSON", 1),
        ("speech_tokenizer/config.json", "config.json is not JSON", 1),
    ],
)
def test_checkpoint_that_cannot_be_loaded_has_a_row_with_the_reason(
    file: str,
    reason: str,
    num_runs: int,
    tiny_folder: Path,
    golden: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_folder / "voice_design", broken)
    cut(broken / file)
    golden_file, path = golden("voice_design"), tmp_path / "report.json"
    capsys.readouterr()  # of the recording
    code, report = run(broken, golden_file, path, "--device", "cpu")
    assert code == 1
    assert report["is_ok"] is False
    rows = [row for one in report["runs"] for row in one["rows"]]
    assert [(row["check"], row["status"]) for row in rows] == [("load", "not run")] * num_runs
    assert all(row["result"].startswith("CheckpointError: ") for row in rows)
    assert all(reason in row["result"] for row in rows)
    assert str(tmp_path) not in path.read_text()
    header, first, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "check", "result", "required", "status"]
    assert first.startswith("eager float32  load ")
    assert reason in first


def test_backend_that_cannot_run_has_a_row_beside_the_other_run(
    tiny_folder: Path, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    options = ("--backend", "cuda_graph", "--device", "cpu")
    code, report = run(tiny_folder / "base", golden("base"), tmp_path / "report.json", *options)
    assert code == 1
    [only] = report["runs"]
    assert (only["backend"], only["load_s"]) == ("cuda_graph", None)
    assert "needs an NVIDIA GPU" in only["rows"][0]["result"]


def test_report_keeps_no_absolute_path_of_a_reason() -> None:
    row = failed_row("load", ValueError("x"), reason="cannot read /home/me/model.safetensors")
    assert row.values["error"] == "ValueError"
    assert "/home/me" in row.result
