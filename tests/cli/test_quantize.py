"""`vivace quantize`."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivace import TTS
from vivace.cli.main import main


def test_quantize_writes_a_folder_that_speaks(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "int4"
    source = str(tiny_folder / "custom_voice")
    assert main(["quantize", source, "-o", str(target), "--weights", "int4"]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    with TTS.load(target) as tts:
        assert "weights in int4" in repr(tts)
    assert main(["quantize", str(target), "-o", str(tmp_path / "again")]) == 1
    assert "already quantized to int4" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["mini"], ["mini", "-o", "x", "--weights", "int3"], ["-o", "x"]]
)
def test_invalid_arguments_are_reported(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as info:
        main(["quantize", *arguments])
    assert info.value.code == 2
