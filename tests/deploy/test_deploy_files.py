"""The files in deploy/ match the server's options and each other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import ROOT
from vivace.serve.ray_replica import read_arguments

yaml = pytest.importorskip("yaml", reason="no PyYAML")

DEPLOY = ROOT / "deploy"
SERVE_FILES = sorted((DEPLOY / "ray").glob("serve*.yaml")) + sorted(
    (DEPLOY / "kuberay").glob("*.yaml")
)


def serve_config(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text("utf-8"))
    return (
        content if "applications" in content else yaml.safe_load(content["spec"]["serveConfigV2"])
    )


@pytest.mark.parametrize("path", SERVE_FILES, ids=lambda path: path.name)
def test_serve_config_arguments_are_valid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIVACE_MAX_STREAMS", raising=False)
    (application,) = serve_config(path)["applications"]
    assert application["import_path"] == "vivace.serve.ray_app:app"
    scale, settings = read_arguments(application["args"])
    assert scale.min_replicas == 2
    assert scale.num_slots == int(settings["max_streams"])
    assert scale.max_ongoing > scale.num_slots


@pytest.mark.parametrize("path", sorted((DEPLOY / "kuberay").glob("*.yaml")), ids=lambda p: p.name)
def test_manifest_workers_have_resources_for_replicas(path: Path) -> None:
    content = yaml.safe_load(path.read_text("utf-8"))
    (application,) = serve_config(path)["applications"]
    scale, _ = read_arguments(application["args"])
    (group,) = content["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (scale.min_replicas, scale.max_replicas)
    pod = group["template"]["spec"]
    limits = pod["containers"][0]["resources"]["limits"]
    assert float(limits["cpu"]) >= scale.cpus
    assert float(limits.get("nvidia.com/gpu", 0)) >= scale.gpus
    assert pod["terminationGracePeriodSeconds"] > scale.stop_timeout_s


def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "proxy" / "compose.yaml").read_text("utf-8"))
    return content


def is_server(service: dict[str, Any]) -> bool:
    return "--voices" in service.get("command", [])


def test_compose_changes_owner_of_voices_before_server_starts() -> None:
    services = compose()["services"]
    dockerfile = (DEPLOY.parent / "docker" / "Dockerfile").read_text("utf-8")
    (user,) = re.findall(r"useradd .*--uid (\d+) vivace", dockerfile)
    servers = [service for service in services.values() if is_server(service)]
    assert len(servers) == 2
    for server in servers:
        folder = server["command"][server["command"].index("--voices") + 1]
        (mount,) = (volume for volume in server["volumes"] if volume.endswith(f":{folder}"))
        ((name, condition),) = server["depends_on"].items()
        assert condition == {"condition": "service_completed_successfully"}
        owner = services[name]
        assert owner["user"] == "root"
        assert mount in owner["volumes"]
        assert owner["restart"] == "no"
        assert f"chown {user} {folder}" in owner["entrypoint"][-1]


def test_compose_entrypoint_changes_owner_of_folder(tmp_path: Path) -> None:
    """Run the real command with a folder and a user of this machine."""
    shell, flag, command = compose()["services"]["folder"]["entrypoint"]
    folder = tmp_path / "voices"
    folder.mkdir(mode=0o755)
    command = command.replace("/voices", str(folder)).replace("10001", str(os.getuid()))
    subprocess.run([shell, flag, command], check=True)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_compose_proxy_lists_every_server() -> None:
    content = compose()
    servers = {name for name, service in content["services"].items() if is_server(service)}
    proxy = content["services"]["proxy"]
    assert {address.split(":")[0] for address in proxy["environment"].values()} == servers
    config = (DEPLOY / "proxy" / "haproxy.cfg").read_text("utf-8")
    assert set(re.findall(r"^\s+server \S+ \$\{(\w+)\}", config, re.M)) == {*proxy["environment"]}


FAKE_SERVE = """#!/bin/sh
echo "$RAY_AUTH_MODE $@" >> "{folder}/calls"
if [ "$1" = deploy ]; then cp "$4" "{folder}/deployed"; exit 0; fi
num_calls=$(grep -c status "{folder}/calls")
if [ "$num_calls" -lt {num_busy} ]; then
    printf 'applications:\\n  vivace:\\n    status: DELETING\\n'
else
    printf 'applications: {{}}\\ntarget_capacity: null\\n'
fi
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("num_busy", "timeout_s", "code"), [(1, "60", 0), (2, "60", 0), (9, "0", 1)]
)
def test_drain_script_waits_for_last_application(
    tmp_path: Path, num_busy: int, timeout_s: str, code: int
) -> None:
    program = tmp_path / "bin" / "serve"
    program.parent.mkdir()
    program.write_text(FAKE_SERVE.format(folder=tmp_path, num_busy=num_busy))
    program.chmod(0o755)
    variables = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
    variables["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    command = [str(DEPLOY / "ray" / "drain.sh"), "http://head:8265", timeout_s]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].startswith("token deploy --address http://head:8265 ")
    assert calls[1] == "token status --address http://head:8265"
    assert len(calls) == 1 + (num_busy if code == 0 else 1)
    assert yaml.safe_load((tmp_path / "deployed").read_text()) == {"applications": []}


@pytest.mark.slow  # nginx writes logs to system folders
@pytest.mark.parametrize("name", ["haproxy", "nginx"])
def test_proxy_accepts_config_file(name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"no {name}")
    path = str(DEPLOY / "proxy" / ("haproxy.cfg" if name == "haproxy" else "nginx.conf"))
    command = [name, "-c", "-f", path] if name == "haproxy" else [name, "-t", "-q", "-c", path]
    servers = {"VIVACE_ONE": "127.0.0.1:8001", "VIVACE_TWO": "127.0.0.1:8002"}
    environment = {**os.environ, **servers}
    checked = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
