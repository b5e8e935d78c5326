"""A sitting brings back all that it made, whatever of it fails: its programs are stand-ins here."""

from __future__ import annotations

import gzip
import os
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT

SCRIPT = ROOT / "recipes" / "mini_voice" / "sitting.sh"
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


def sit(tmp_path: Path, fails: str = "") -> tuple[int, dict[str, str], list[str]]:
    """The script's status, what it brought back, and the calls it made."""
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
    told = {"FAILS": fails, "SETS": 'data.speakers=["heart","michael"]'}
    done = subprocess.run(
        ["bash", str(SCRIPT), str(carry), "100"],
        cwd=ROOT,
        env={**os.environ, **told, **{name: str(path) for name, path in places.items()}},
        capture_output=True,
        timeout=120,
        check=False,
    )
    back = {path.name: path.read_text().strip() for path in out.iterdir()}
    return done.returncode, back, (tmp_path / "calls").read_text().splitlines()


def test_talker_codes_and_logs_come_back(tmp_path: Path) -> None:
    status, back, calls = sit(tmp_path)
    assert status == 0
    assert {back[name] for name in TALKER} == {"trained"}
    assert {back[name] for name in KNOWN[2:]} == {"new"}
    assert {"sitting.jsonl", "read.log"} <= back.keys()
    stages = [call for call in calls if "recipes.mini_voice." in call and "-m" in call.split()]
    assert len(stages) == 3
    assert all('data.speakers=["heart","michael"]' in call for call in stages)


@pytest.mark.parametrize(("fails", "talker", "codes"), [
    ("reading", "trained", "old"), ("training", "shipped", "new"),
])  # fmt: skip
def test_what_fails_does_not_cost_the_rest(
    tmp_path: Path, fails: str, talker: str, codes: str
) -> None:
    status, back, _ = sit(tmp_path, fails)
    assert status == (0 if fails == "reading" else 1)
    assert {back[name] for name in TALKER} == {talker}
    assert back["codes_a.npy"] == codes
