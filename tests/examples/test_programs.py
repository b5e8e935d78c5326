"""Runs the examples without frameworks, and checks what all examples have in common."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from fastapi.testclient import TestClient

from tests.support.cli_harness import LIMIT_S, environment
from tests.support.project import ROOT, load_script
from tests.support.serving import running
from vivace import TTS, Voice
from vivace.cli.parser import build_parser
from vivace.errors import QueueFullError
from vivace.serve.settings import ServeSettings

EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
FILES = [*PROGRAMS, *EXAMPLES.glob("*.ipynb"), *EXAMPLES.glob("*/*.yaml")]
MAX_LINES = 60
PUBLIC = {"vivace", "vivace.errors", "vivace.integrations.pipecat", "vivace.integrations.livekit"}
SUBTITLES = """1
00:00:00,500 --> 00:00:02,000
Good <i>evening</i>.

2
00:00:02,500 --> 00:00:02,900
This line is much longer
than its time on the screen.

3
00:00:06,000 --> 00:00:07,000
The end.
"""


# -- all examples ------------------------------------------------------------------------------


def test_readme_lists_every_example() -> None:
    listed = re.findall(
        r"^\| \[`\S+`\]\((\S+)\)", (EXAMPLES / "README.md").read_text("utf-8"), re.M
    )
    assert sorted(listed) == sorted(path.relative_to(EXAMPLES).as_posix() for path in FILES)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_program_is_short_public_and_contains_its_command(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) < MAX_LINES
    tree = ast.parse(text)
    docstring = ast.get_docstring(tree) or ""
    assert re.search(rf"^ {{4}}\S.*{path.stem}", docstring, re.M), "the docstring has no command"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vivace"):
            assert node.module in PUBLIC


def run_program(name: str, folder: Path, *arguments: str | Path) -> str:
    """Run an example in a folder. Returns its stdout."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loudest(path: Path) -> float:
    samples, _ = soundfile.read(path)
    return float(np.abs(samples).max())


# -- programs ----------------------------------------------------------------------------------


@pytest.mark.ci
def test_callback_program_prints_chunks(tmp_path: Path) -> None:
    assert run_program("callback.py", tmp_path).count("AudioChunk") > 2


@pytest.mark.ci
def test_podcast_writes_episode_tracks_and_notes(tmp_path: Path) -> None:
    run_program("podcast.py", tmp_path, "-o", "show.wav")
    assert {path.name for path in tmp_path.iterdir()} == {
        *("show.wav", "show-Anna.wav", "show-Ben.wav", "show.txt")
    }
    assert loudest(tmp_path / "show.wav") > 0.05
    lines = (tmp_path / "show.txt").read_text("utf-8").splitlines()
    assert [line.split()[2] for line in lines] == ["Anna:", "Ben:", "Anna:", "Ben:", "Anna:"]


def test_subtitles_are_spoken_at_their_times(tmp_path: Path) -> None:
    (tmp_path / "film.srt").write_text(SUBTITLES, "utf-8")
    run_program("subtitles_to_speech.py", tmp_path, "film.srt")
    samples, rate = soundfile.read(tmp_path / "film.wav")
    assert np.abs(samples[: rate // 2]).max() == 0
    assert np.abs(samples[rate // 2 : 2 * rate]).max() > 0.02
    assert np.abs(samples[6 * rate :]).max() > 0.02  # the last line is not late
    assert np.abs(samples[6 * rate - rate // 4 : 6 * rate]).max() < 0.02


def test_subtitle_files_are_parsed(tmp_path: Path) -> None:
    (tmp_path / "film.srt").write_text("\ufeff" + SUBTITLES, "utf-8")
    cues = load_script(EXAMPLES / "subtitles_to_speech.py").read_cues(tmp_path / "film.srt")
    long_line = "This line is much longer than its time on the screen."
    assert cues == [(0.5, "Good evening."), (2.5, long_line), (6.0, "The end.")]


@pytest.mark.ci
def test_audiobooks_are_made_once(tmp_path: Path) -> None:
    books = tmp_path / "books"
    books.mkdir()
    (books / "short.txt").write_text("Chapter 1\n\nIt was late.\n", "utf-8")
    (books / "cover.jpg").write_bytes(b"not a book")
    first = run_program("audiobooks.py", tmp_path, books, "audio", "--device", "cpu")
    assert re.search(r"^short.m4b: 0.\d minutes, 0 words not spoken", first)
    assert (tmp_path / "audio" / "short.m4b").stat().st_size > 5_000
    second = run_program("audiobooks.py", tmp_path, books, "audio")
    assert second == "short.m4b: exists\n"


@pytest.mark.ci
def test_openai_client_writes_file_and_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    with running(ServeSettings(port=0, voices=tmp_path / "voices")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        runpy.run_path(str(EXAMPLES / "openai_client.py"), run_name="__main__")
    assert loudest(tmp_path / "hello.mp3") > 0.05
    output = capfdbinary.readouterr()
    assert re.search(rb"first audio after \d+ ms", output.err)
    samples = np.frombuffer(output.out, "<i2")
    assert len(samples) > 24_000
    assert np.abs(samples).max() > 1_000


def test_notebook_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text("utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in notebook["cells"])
    names: dict[str, Any] = {}
    shown = [run_cell(cell, names) for cell in cells]
    assert sum("<audio controls" in text for text in shown) == 3
    assert loudest(tmp_path / "notebook.wav") > 0.05


def run_cell(code: str, names: dict[str, Any]) -> str:
    """Run a cell. Returns the HTML of the value of its last line, as a notebook shows it."""
    tree = ast.parse(code)
    value: Any = None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return str(value._repr_html_()) if hasattr(value, "_repr_html_") else ""


# -- FastAPI -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(load_script(EXAMPLES / "fastapi_app.py").app) as client:
        yield client


def test_fastapi_app_speaks_over_http_and_socket(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "hello.mp3").write_bytes(client.get("/speech", params={"text": "Hello."}).content)
    assert loudest(tmp_path / "hello.mp3") > 0.05
    with client.websocket_connect("/talk") as socket:
        for piece in ("Hel", "lo ", "there.", ""):
            socket.send_text(piece)
        blocks = []
        while (message := socket.receive())["type"] == "websocket.send":
            blocks.append(message["bytes"])
    assert len(blocks) > 1
    assert np.abs(np.frombuffer(b"".join(blocks), "<i2")).max() > 1_000


def test_fastapi_app_maps_errors_to_status_codes(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/speech", params={"text": "..."}).status_code == 400

    def refuse(utterance: object) -> None:
        raise QueueFullError(8, 2.2)

    tts: TTS = client.app.state.tts  # type: ignore[attr-defined]
    monkeypatch.setattr(tts.engine, "submit", refuse)
    answer = client.get("/speech", params={"text": "Hello."})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")


# -- Home Assistant ----------------------------------------------------------------------------


def test_home_assistant_compose_starts_a_wyoming_server() -> None:
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((EXAMPLES / "home_assistant" / "compose.yaml").read_text("utf-8"))
    vivace = services["services"]["vivace"]
    parser, _ = build_parser()
    arguments = parser.parse_args([*vivace["entrypoint"][1:], *vivace["command"]])
    assert (arguments.command, arguments.wyoming_port) == ("wyoming", 10_200)
    assert "ports" not in vivace  # anonymous access is limited to the network of the containers
    assert str(arguments.wyoming_port) in " ".join(vivace["healthcheck"]["test"])
    assert (EXAMPLES / "home_assistant" / vivace["build"]["context"] / "docker").is_dir()


# -- ComfyUI -----------------------------------------------------------------------------------


def test_comfyui_node_returns_audio(monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> None:
    whole = TTS.speak
    monkeypatch.setattr(TTS, "speak", lambda *a, **k: whole(*a, **k, max_frames=5))
    module = load_script(EXAMPLES / "comfyui_node.py")
    (node,) = module.NODE_CLASS_MAPPINGS.values()
    assert module.NODE_CLASS_MAPPINGS.keys() == module.NODE_DISPLAY_NAME_MAPPINGS.keys()
    assert node.RETURN_TYPES == ("AUDIO",)
    speak = getattr(node(), node.FUNCTION)
    inputs = node.INPUT_TYPES()
    values = {name: kind[1]["default"] for name, kind in inputs["required"].items()}
    values |= {name: kind[1]["default"] for name, kind in inputs["optional"].items() if kind[1:]}
    (audio,) = speak(**values)
    assert audio["sample_rate"] == 24_000
    assert audio["waveform"].dtype == torch.float32
    assert audio["waveform"].shape[:2] == (1, 1)
    assert torch.equal(audio["waveform"], speak(**values)[0]["waveform"])  # the seed is kept

    given = 0.1 * torch.sin(torch.arange(48_000) / 20)
    reference = {"waveform": given.expand(1, 2, -1), "sample_rate": 24_000}
    played: list[Any] = []
    clone = TTS.clone

    def recorded(tts: TTS, audio: Any) -> Voice:
        played.append(audio)
        return clone(tts, audio)

    monkeypatch.setattr(TTS, "clone", recorded)
    (audio,) = speak("Hello.", str(tiny_folder / "base"), reference=reference)
    assert np.allclose(played[0][0], given.numpy(), atol=1e-6)
    assert audio["waveform"].shape[2] <= 5 * 1_920
