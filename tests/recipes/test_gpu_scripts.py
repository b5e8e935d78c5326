"""Scripts for GPU machines return all results even if a stage fails. The stages are stubs here."""

from __future__ import annotations

import gzip
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.project import ROOT

SCRIPT = ROOT / "recipes" / "mini_voice" / "continue_talker.sh"
KNOWN = ("encoder.safetensors", "leads.npy", "codes_a.npy", "codes_b.npy", "utterances.npz")
TALKER = ("talker_a.safetensors", "talker_b.safetensors")
PYTHON = """#!/usr/bin/env bash
echo "$@" >> "$CALLS"
for word in "$@"; do [ "${before:-}" = --out ] && out=$word; before=$word; done
case "$*" in
  *more_codes*)
    [ "$FAILS" = reading ] && exit 1
    for name in codes_a.npy codes_b.npy utterances.npz; do echo new > "$out/$name"; done ;;
  *train_talker*)
    [ "$FAILS" = training ] && exit 1
    for part in a b; do echo trained > "$out/talker_$part.safetensors"; done
    echo '{}' > "$out/log.jsonl"; touch "$out/done" ;;
  *) for part in a b; do echo shipped > "$WORK/known/talker_$part.safetensors"; done ;;
esac
"""


def continue_talker(tmp_path: Path, fails: str = "") -> tuple[int, dict[str, str], list[str]]:
    """The script's exit status, its output files, and the calls it made."""
    carry, out = tmp_path / "carry", tmp_path / "out"
    carry.mkdir()
    for name in KNOWN:
        (carry / name).write_text("old\n")
    for name in ("lines", "rare"):
        (carry / f"{name}.txt.gz").write_bytes(gzip.compress(b"a line\n"))
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    places = {"OUT": out, "WORK": tmp_path / "work", "PYTHON": python, "CALLS": tmp_path / "calls"}
    variables = {"FAILS": fails, "SETS": 'data.speakers=["heart","michael"]'}
    done = subprocess.run(
        ["bash", str(SCRIPT), str(carry), "100"],
        cwd=ROOT,
        env={**os.environ, **variables, **{name: str(path) for name, path in places.items()}},
        capture_output=True,
        timeout=120,
        check=False,
    )
    back = {path.name: path.read_text().strip() for path in out.iterdir()}
    return done.returncode, back, (tmp_path / "calls").read_text().splitlines()


def test_continued_talker_codes_and_logs_are_returned(tmp_path: Path) -> None:
    status, back, calls = continue_talker(tmp_path)
    assert status == 0
    assert {back[name] for name in TALKER} == {"trained"}
    assert {back[name] for name in KNOWN[2:]} == {"new"}
    assert {"train.jsonl", "read.log"} <= back.keys()
    stages = [call for call in calls if "recipes.mini_voice." in call and "-m" in call.split()]
    assert len(stages) == 3
    assert all('data.speakers=["heart","michael"]' in call for call in stages)


@pytest.mark.parametrize(("fails", "talker", "codes"), [
    ("reading", "trained", "old"), ("training", "shipped", "new"),
])  # fmt: skip
def test_other_results_are_kept_after_stage_failure(
    tmp_path: Path, fails: str, talker: str, codes: str
) -> None:
    status, back, _ = continue_talker(tmp_path, fails)
    assert status == (0 if fails == "reading" else 1)
    assert {back[name] for name in TALKER} == {talker}
    assert back["codes_a.npy"] == codes


SPEAKER_SCRIPT = SCRIPT.with_name("add_speaker.sh")
SPEAKER_PYTHON = """#!/usr/bin/env bash
echo "$@" >> "$CALLS"
for word in "$@"; do [ "${before:-}" = --out ] && out=$word; before=$word; done
case "$*" in
  *synthesize*) [ "$FAILS" = reading ] && exit 1; echo "shard 3" ;;
  *more_codes*) [ "$FAILS" = lines ] && exit 1; echo new > "$out/utterances.npz" ;;
  *train_speaker*) for name in encoder decoder; do echo second > "$out/$name.safetensors"; done ;;
  *train_gan*)
    [ -n "$FAILS" ] && [ "${out##*/}" = "$FAILS" ] && exit 1
    for name in decoder.safetensors discriminators.safetensors samples.npz; do
      echo both > "$out/$name"
    done ;;
  *average_decoders*) echo mean > "$out/decoder.safetensors" ;;
  *train_talker*) for part in a b; do echo both > "$out/talker_$part.safetensors"; done ;;
esac
[ -d "${out:-}" ] && echo '{}' > "$out/log.jsonl"
exit 0
"""


KNOWN_OF_TWO = tuple(f"{name}.safetensors" for name in ("decoder", "discriminators", "listener"))


def add_speaker(
    tmp_path: Path, fails: str = "", *, encoder: str = "", **variables: str
) -> tuple[int, dict[str, str], list[str]]:
    """`encoder` is the second speaker's encoder of an earlier run, if any."""
    carry, out, python = tmp_path / "carry", tmp_path / "out", tmp_path / "python"
    (carry / "second").mkdir(parents=True)
    for name in {*KNOWN_OF_TWO, *KNOWN}:
        (carry / name).write_text("old\n")
    if encoder:
        (carry / "second" / KNOWN[0]).write_text(f"{encoder}\n")
    for name in ("lines", "rare"):
        (carry / f"{name}.txt.gz").write_bytes(gzip.compress(b"a line\n"))
    python.write_text(SPEAKER_PYTHON)
    python.chmod(0o755)
    places = {"OUT": out, "WORK": tmp_path / "work", "PYTHON": python, "CALLS": tmp_path / "calls"}
    done = subprocess.run(
        ["bash", str(SPEAKER_SCRIPT), str(carry), "100"],
        cwd=ROOT,
        env={
            **os.environ, **variables, "FAILS": fails, "FIRST_SHARD": "2",
            **{name: str(path) for name, path in places.items()},
        },
        capture_output=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    files = [path for path in out.rglob("*") if path.is_file()]
    back = {str(path.relative_to(out)): path.read_text().strip() for path in files}
    return done.returncode, back, (tmp_path / "calls").read_text().splitlines()


@pytest.mark.parametrize("fails", ["", "lines"])
def test_decoder_and_talker_of_both_speakers_are_returned(tmp_path: Path, fails: str) -> None:
    status, back, calls = add_speaker(tmp_path, fails)
    assert status == 0
    made = {name: back[name] for name in (*TALKER, "discriminators.safetensors", "samples.npz")}
    assert set(made.values()) == {"both"}
    assert back["decoder.safetensors"] == "mean"
    assert back["encoder.safetensors"] == "second"
    [merged] = [call for call in calls if "merge_codes" in call]
    assert ("/rare " in merged) == (fails != "lines")
    assert len([call for call in calls if "synthesize" in call]) == 2


@pytest.mark.parametrize("encoder", ["", "earlier"])
def test_second_encoder_is_trained_only_if_missing(tmp_path: Path, encoder: str) -> None:
    status, _, calls = add_speaker(tmp_path, encoder=encoder)
    assert status == 0
    [call] = [call.split() for call in calls if "train_speaker" in call]
    assert (call[call.index("--seconds") + 1] == "0") == bool(encoder)
    known = Path(call[call.index("--resume") + 1])
    assert (known / KNOWN[0]).read_text().strip() == (encoder or "old")


@pytest.mark.parametrize(
    ("cycles", "fails", "made"), [("1", "", 1), ("3", "", 3), ("3", "gan_2", 1)]
)
def test_decoder_is_mean_of_successive_cycles(
    tmp_path: Path, cycles: str, fails: str, made: int
) -> None:
    status, back, calls = add_speaker(tmp_path, fails, CYCLES=cycles)
    assert status == 0
    trained = [call.split() for call in calls if "train_gan" in call][:made]
    begun = [Path(call[call.index("--resume") + 1]).name for call in trained]
    assert begun == ["two", "gan_1", "gan_2"][:made]
    [averaged] = [call.split() for call in calls if "average_decoders" in call]
    assert [word for word in averaged if "/gan_" in word] == [
        str(tmp_path / "work" / f"gan_{n}") for n in range(1, made + 1)
    ]
    assert back["decoder.safetensors"] == "mean"


def test_added_speaker_stops_if_synthesis_fails(tmp_path: Path) -> None:
    status, back, calls = add_speaker(tmp_path, "reading")
    assert (status, back) == (3, {})
    assert not [call for call in calls if "train" in call]
