"""`vivace download` and first use against a local server with the hub's API."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support import fork_server
from tests.support.cli_harness import LIMIT_S, environment, run_here, wait_until
from tests.support.fake_hub import COMMIT, FakeHub, fake_hub
from vivace.hub import RELEASED
from vivace.hub.download import SPARE_BYTES

NAME = "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"
WEIGHTS = "model.safetensors"
CHILD = "import sys; from vivace.cli.main import main; sys.exit(main(sys.argv[1:]))"
SMALL_DISK = "import shutil; shutil.disk_usage = lambda _: shutil._ntuple_diskusage(1, 1, 0); "


@pytest.fixture
def hub(tiny_folder: Path) -> Iterator[FakeHub]:
    with fake_hub(NAME, tiny_folder / "custom_voice") as hub:
        yield hub


class Client:
    """Runs commands with a cache of their own."""

    def __init__(self, url: str, home: Path) -> None:
        self.home = home
        self.model = home / "hub" / f"models--{NAME.replace('/', '--')}"
        self._environment = environment() | {
            "HF_ENDPOINT": url,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def start(
        self, arguments: Sequence[str], code: str = CHILD, **variables: str
    ) -> fork_server.Process:
        return fork_server.server().start(
            code,
            arguments,
            env=self._environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str, code: str = CHILD, **variables: str) -> tuple[int, str, str]:
        process = self.start(arguments, code, **variables)
        output, error = process.communicate(timeout=LIMIT_S)
        return process.wait(), output.decode(), error.decode()

    def num_partial_bytes(self) -> list[int]:
        """Sizes of the unfinished files."""
        return [path.stat().st_size for path in (self.model / "blobs").glob("*.incomplete")]


@pytest.fixture
def client(hub: FakeHub, tmp_path: Path) -> Client:
    return Client(hub.url, tmp_path / "home")


def test_download_prints_folder_and_shows_progress(hub: FakeHub, client: Client) -> None:
    code, output, error = client.run("download", NAME)
    assert code == 0, error
    folder = Path(output.strip())
    assert folder.name == COMMIT
    for path in ("config.json", WEIGHTS, f"speech_tokenizer/{WEIGHTS}"):
        assert (folder / path).read_bytes() == (hub.folder / path).read_bytes()
        assert hub.ranges(path) == [None]  # downloaded once
    assert "100%" in error
    assert not list(client.model.rglob("*.incomplete"))

    code, output, error = client.run("models", "--json")
    cached = {model["name"]: model["cached"] for model in json.loads(output)}
    assert cached == dict.fromkeys(RELEASED, 0) | {"mini": 1, NAME: 1}

    code, output, _ = client.run("download", NAME, HF_ENDPOINT="http://127.0.0.1:9")
    assert (code, Path(output.strip())) == (0, folder)  # no network is needed any more


@pytest.mark.ci
def test_first_use_downloads_model(hub: FakeHub, client: Client) -> None:
    code, output, error = client.run("speakers", "--model", NAME, "--json")
    assert code == 0, error
    assert json.loads(output)["type"] == "custom_voice"
    assert hub.ranges(WEIGHTS) == [None]


@pytest.fixture
def large_hub(tiny_folder: Path, tmp_path: Path) -> Iterator[FakeHub]:
    """Weights of several blocks: huggingface_hub writes 10 MB at a time."""
    folder = tmp_path / "large"
    shutil.copytree(tiny_folder / "custom_voice", folder)
    with (folder / WEIGHTS).open("wb") as file:
        for number in range(24):
            file.write(bytes([number]) * 1_000_000)
    with fake_hub(NAME, folder) as hub:
        yield hub


def test_killed_download_continues_where_it_stopped(large_hub: FakeHub, tmp_path: Path) -> None:
    hub, client = large_hub, Client(large_hub.url, tmp_path / "home")
    hub.stop_after = 22_000_000
    process = client.start(["download", NAME])
    wait_until(lambda: any(client.num_partial_bytes()), "the first blocks")
    process.kill()
    process.communicate()
    hub.may_continue.set()
    (num_bytes,) = client.num_partial_bytes()
    assert 0 < num_bytes < 22_000_000
    code, output, error = client.run("download", NAME)
    assert code == 0, error
    assert hub.ranges(WEIGHTS) == [None, f"bytes={num_bytes}-"]
    folder = Path(output.strip())
    assert (folder / WEIGHTS).read_bytes() == (hub.folder / WEIGHTS).read_bytes()
    assert client.num_partial_bytes() == []


@pytest.mark.ci
def test_lost_connection_is_retried_from_its_position(large_hub: FakeHub, tmp_path: Path) -> None:
    hub, client = large_hub, Client(large_hub.url, tmp_path / "home")
    hub.stop_after = 22_000_000
    hub.may_continue.set()
    code, _, error = client.run("download", NAME)
    assert code == 0, error
    assert hub.ranges(WEIGHTS) == [None, "bytes=20971520-"]


@pytest.mark.ci
def test_part_that_is_larger_than_the_file_is_downloaded_anew(hub: FakeHub, client: Client) -> None:
    (weights,) = (file for file in hub.files if file["path"] == WEIGHTS)
    part = client.model / "blobs" / f"{weights['lfs']['sha256']}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(weights["size"] + 1))
    code, output, error = client.run("download", NAME)
    assert code == 0, error
    assert (Path(output.strip()) / WEIGHTS).read_bytes() == (hub.folder / WEIGHTS).read_bytes()


@pytest.mark.ci
def test_corrupt_part_is_rejected_and_deleted(hub: FakeHub, client: Client) -> None:
    (client.model / "blobs").mkdir(parents=True)
    (weights,) = (file for file in hub.files if file["path"] == WEIGHTS)
    part = client.model / "blobs" / f"{weights['lfs']['sha256']}.incomplete"
    part.write_bytes(b"x" * 1000)
    code, _, error = client.run("download", NAME)
    assert code == 1
    assert f"{WEIGHTS} was corrupt and is deleted" in error
    assert not part.exists()
    assert client.run("download", NAME)[0] == 0


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(
    ("wrong", "suggested"),
    [
        ("Qwen/Qwen3-TTS-0.6B-CustomVoice", NAME),
        ("qwen/qwen3-tts-12hz-1.7b-voicedesing", "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign"),
        ("1.7B-Base", "Qwen/Qwen3-TTS-12Hz-1.7B-Base"),
    ],
)
def test_wrong_name_suggests_similar_name(client: Client, wrong: str, suggested: str) -> None:
    code, output, error = client.run("download", wrong)
    assert (code, output) == (1, "")
    assert f"did you mean {suggested}?" in error or f"such as {suggested}" in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["tokenizer_config.json", "speech_tokenizer/model.safetensors"])
def test_folder_without_a_needed_file_is_reported(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = shutil.copytree(tiny_folder / "custom_voice", tmp_path / "copy")
    assert run_here("download", folder) == 0
    assert capsys.readouterr().out.strip() == str(folder)
    (folder / name).unlink()
    assert run_here("download", folder) == 1
    assert capsys.readouterr().err == f"vivace: the folder {folder} is no model: it lacks {name}\n"


def test_unreachable_hub_is_reported(client: Client) -> None:
    code, output, error = client.run("download", NAME, HF_ENDPOINT="http://127.0.0.1:9")
    assert (code, output) == (1, "")
    assert "the hub could not be reached; check the connection" in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.slow  # as the next test, with a disk that lacks one byte
def test_small_disk_is_rejected_before_the_download(hub: FakeHub, client: Client) -> None:
    code, _, error = client.run("download", NAME, code=SMALL_DISK + CHILD)
    assert code == 1
    assert "the disk has 0.0 GB free" in error
    assert "set HF_HOME" in error
    assert hub.ranges(WEIGHTS) == []


@pytest.mark.ci
def test_disk_needs_space_for_the_rest_of_the_weights_and_a_reserve(
    hub: FakeHub, client: Client
) -> None:
    files = [file for file in hub.files if "lfs" in file]
    num_free = sum(file["size"] for file in files) + SPARE_BYTES - 1
    disk = SMALL_DISK.replace("(1, 1, 0)", f"(1, 1, {num_free})")
    code, _, error = client.run("download", NAME, code=disk + CHILD)
    assert code == 1
    assert "free some space or set HF_HOME" in error
    assert hub.ranges(WEIGHTS) == []
    weights = next(file for file in files if file["path"] == WEIGHTS)
    part = client.model / "blobs" / f"{weights['lfs']['sha256']}.incomplete"
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes((hub.folder / WEIGHTS).read_bytes()[:1000])
    code, _, error = client.run("download", NAME, code=disk + CHILD)
    assert code == 0, error


@pytest.mark.ci
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_full_disk_is_reported(hub: FakeHub, client: Client) -> None:
    (client.model / "blobs").mkdir(parents=True)
    for file in hub.files:
        if "lfs" in file:
            part = client.model / "blobs" / f"{file['lfs']['sha256']}.incomplete"
            part.symlink_to("/dev/full")
    code, _, error = client.run("download", NAME)
    assert code == 1
    assert f"the disk of {client.home / 'hub'} is full" in error


@pytest.mark.ci
def test_models_shows_the_downloaded_share(hub: FakeHub, client: Client) -> None:
    (client.model / "blobs").mkdir(parents=True)
    with (client.model / "blobs" / "0.incomplete").open("wb") as file:
        file.truncate(1_250_000_000)  # a sparse file
    code, output, _ = client.run("models")
    assert code == 0
    (line,) = (line for line in output.splitlines() if line.startswith(NAME))
    assert line.split()[1:6] == ["2.5", "GB", "Apache-2.0", "50%", "9"]
