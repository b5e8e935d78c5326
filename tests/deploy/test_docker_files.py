"""The image and the compose files follow the rules for containers, and the page is served."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import ROOT
from tests.support.serving import running
from vivace.cli.parser import build_parser
from vivace.serve.setting_sources import resolve_settings

yaml = pytest.importorskip("yaml", reason="no PyYAML")

DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text("utf-8")
COMPOSE_FILES = [ROOT / "docker" / "compose.yaml", *ROOT.glob("*/*/compose.yaml")]
PINNED = re.compile(r":\d+\.\d+-\w+-\w+$|@sha256:")  # a version and a release, or a digest
SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)", re.I)


def instructions(text: str) -> list[tuple[str, str]]:
    """Instructions and their arguments, without comments and with joined lines."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found = [line.split(maxsplit=1) for line in lines.replace("\\\n", " ").splitlines() if line]
    return [(name, rest) for name, rest in found]


def find_breaches(text: str) -> list[str]:
    """Broken rules of a Dockerfile."""
    steps = instructions(text)
    stages = {rest.split()[-1] for name, rest in steps if name == "FROM" and " AS " in rest}
    breaches = []
    for name, rest in steps:
        image = rest.split()[0]
        is_remote = name == "FROM" and image not in stages and "${" not in image
        if is_remote and not PINNED.search(image):
            breaches.append(f"{image} is not pinned to a version and a release")
        if name in ("ENV", "ARG") and any(SECRET.search(w.split("=")[0]) for w in rest.split()):
            breaches.append(f"{name} {rest} holds a secret")
        if name == "ADD":
            breaches.append("ADD may fetch remote files; use COPY")
        if name == "RUN" and "apt-get install" in rest and "rm -rf /var/lib/apt/lists" not in rest:
            breaches.append("package lists stay in the image")
    users = [rest for name, rest in steps if name == "USER"]
    if not users or users[-1] in ("root", "0"):
        breaches.append("the container runs as root")
    names = {name for name, _ in steps}
    breaches += [f"no {name}" for name in ("HEALTHCHECK", "ENTRYPOINT") if name not in names]
    return breaches


ARGUMENTS = {rest.split("=")[0] for name, rest in instructions(DOCKERFILE) if name == "ARG"}


def test_dockerfile_follows_all_rules() -> None:
    assert find_breaches(DOCKERFILE) == []


@pytest.mark.parametrize(
    ("old", "new", "breach"),
    [
        ("python:3.12-slim-bookworm AS base-cpu", "python:latest AS base-cpu", "is not pinned"),
        ("USER 10001", "USER root", "runs as root"),
        ("HEALTHCHECK", "LABEL", "no HEALTHCHECK"),
        ("ARG EXTRAS=server", "ARG API_KEY=", "holds a secret"),
        ("&& rm -rf /var/lib/apt/lists/*", "", "package lists"),
        ("COPY src", "ADD src", "ADD may fetch"),
    ],
)
def test_broken_rule_is_detected(old: str, new: str, breach: str) -> None:
    assert old in DOCKERFILE
    assert any(breach in found for found in find_breaches(DOCKERFILE.replace(old, new)))


def test_copied_files_exist_and_are_not_ignored() -> None:
    ignore = (ROOT / "docker" / "Dockerfile.dockerignore").read_text("utf-8").split()
    assert ignore[0] == "*"
    for name, rest in instructions(DOCKERFILE):
        if name == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignore


def services(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))["services"]
    return found


@pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda path: path.parent.name)
def test_compose_publishes_ports_on_this_machine_only(path: Path) -> None:
    for service in services(path).values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
        for name, value in (service.get("environment") or {}).items():
            assert not SECRET.search(name) or value is None or str(value).startswith("${")
        if "build" in service:
            build = service["build"]
            context = path.parent / build["context"]
            assert (context / build["dockerfile"]).is_file()
            arguments = {
                rest.split("=")[0] for name, rest in instructions(DOCKERFILE) if name == "ARG"
            }
            assert build.get("args", {}).keys() <= arguments


@pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda path: path.parent.name)
def test_docker_accepts_compose_file(path: Path) -> None:
    if shutil.which("docker") is None:
        pytest.skip("no docker")
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("no docker compose")
    command = ["docker", "compose", "-f", str(path), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_compose_starts_one_service_by_default() -> None:
    started = [name for name, one in services(COMPOSE_FILES[0]).items() if "profiles" not in one]
    assert started == ["cpu"]


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_compose_command_is_valid(name: str) -> None:
    (entrypoint,) = (rest for step, rest in instructions(DOCKERFILE) if step == "ENTRYPOINT")
    command = services(COMPOSE_FILES[0])[name].get("command", [])
    parser, _ = build_parser()
    arguments = parser.parse_args([*yaml.safe_load(entrypoint)[1:], *command])
    assert arguments.command == "serve"


def test_compose_serves_the_page(tmp_path: Path) -> None:
    """Serve with the variables of the image and of the compose file."""
    (rest,) = (rest for name, rest in instructions(DOCKERFILE) if name == "ENV" and "HOST" in rest)
    variables = dict(word.split("=", 1) for word in shlex.split(rest))
    given = services(COMPOSE_FILES[0])["cpu"]["environment"]
    variables |= {name: value for name, value in given.items() if value is not None}
    assert (variables["VIVACE_HOST"], variables["VIVACE_PORT"]) == ("0.0.0.0", "8000")
    flags = {"port": 0, "voices": str(tmp_path)}
    with running(resolve_settings(flags, variables)) as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/") as page:
            assert page.status == 200
            assert "<html" in page.read().decode()
        (check,) = re.findall(r"r\.urlopen\((.*), timeout=4\)", DOCKERFILE)
        address = check.replace("os.environ['VIVACE_PORT']", f"'{server.port}'")
        with urllib.request.urlopen(eval(address)) as ready:
            assert ready.status == 200
