"""`vivace.compat.install()` redirects `import faster_qwen3_tts`."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import fork_server
from vivace.compat import FasterQwen3TTS, install, uninstall
from vivace.compat.__main__ import main
from vivace.compat.chunks import ChunkTiming
from vivace.errors import IntegrationError, TTSError

RUN_MODULE = """
import runpy, sys

sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("vivace.compat", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    uninstall()


def test_import_is_redirected_only_after_install() -> None:
    assert "faster_qwen3_tts" not in sys.modules
    install()
    install()
    import faster_qwen3_tts
    import faster_qwen3_tts.model

    assert faster_qwen3_tts.FasterQwen3TTS is FasterQwen3TTS
    assert faster_qwen3_tts.model.FasterQwen3TTS is FasterQwen3TTS
    assert importlib.util.find_spec("faster_qwen3_tts") is not None
    uninstall()
    assert "faster_qwen3_tts" not in sys.modules
    uninstall()


def test_install_after_the_import_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = ModuleType("faster_qwen3_tts")
    monkeypatch.setitem(sys.modules, "faster_qwen3_tts", theirs)
    with pytest.raises(IntegrationError, match="imported already"):
        install()
    uninstall()
    assert sys.modules["faster_qwen3_tts"] is theirs
    assert issubclass(IntegrationError, TTSError)


@pytest.mark.ci
def test_command_runs_with_the_redirected_import(tmp_path: Path) -> None:
    package = tmp_path / "talker-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: talker\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[console_scripts]\ntalk = talker:main\n")
    (tmp_path / "talker.py").write_text(
        "import sys\ndef main():\n    from faster_qwen3_tts import FasterQwen3TTS\n"
        "    print(FasterQwen3TTS.__module__, sys.argv)\n    return 3\n"
    )
    done = fork_server.run(RUN_MODULE, str(tmp_path), "talk", "--loud")
    assert (done.returncode, done.stdout) == (3, "vivace.compat.faster ['talk', '--loud']\n")


def test_missing_command_exits_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["compat", "shout"])
    with pytest.raises(SystemExit, match="vivace: no command named 'shout' is installed in"):
        main()


def test_chunk_timing_waits_only_when_is_final_is_read() -> None:
    asked: list[int] = []

    def is_final() -> bool:
        asked.append(1)
        return True

    timing = ChunkTiming({"chunk_index": 2}, is_final)
    assert timing["chunk_index"] == timing.get("chunk_index") == 2
    assert (len(timing), "is_final" in timing, asked) == (2, True, [])
    whole = {"chunk_index": 2, "is_final": True}
    assert dict(timing) == {**timing} == timing.copy() == timing == whole
    assert list(timing.values()) == [2, True]
    assert json.loads(json.dumps(timing)) == whole
    assert repr(timing) == repr(whole)
    assert timing.get("is_final") is True
    assert asked == [1]
