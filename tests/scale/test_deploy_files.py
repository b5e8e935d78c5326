"""The files under deploy/ say what the server understands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vivace.serve.replica import read_arguments

yaml = pytest.importorskip("yaml", reason="no PyYAML")

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVE_FILES = sorted((DEPLOY / "ray").glob("*.yaml")) + sorted((DEPLOY / "kuberay").glob("*.yaml"))


def serve_config(path: Path) -> dict[str, Any]:
    told = yaml.safe_load(path.read_text("utf-8"))
    return told if "applications" in told else yaml.safe_load(told["spec"]["serveConfigV2"])


@pytest.mark.parametrize("path", SERVE_FILES, ids=lambda path: path.name)
def test_the_arguments_of_a_serve_file_are_understood(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIVACE_MAX_STREAMS", raising=False)
    (application,) = serve_config(path)["applications"]
    assert application["import_path"] == "vivace.serve.ray_app:app"
    scale, settings = read_arguments(application["args"])
    assert scale.min_replicas == 2
    assert scale.num_slots == int(settings["max_streams"])
    assert scale.max_ongoing > scale.num_slots


@pytest.mark.parametrize("path", sorted((DEPLOY / "kuberay").glob("*.yaml")), ids=lambda p: p.name)
def test_the_workers_of_a_manifest_have_room_for_its_replicas(path: Path) -> None:
    told = yaml.safe_load(path.read_text("utf-8"))
    (application,) = serve_config(path)["applications"]
    scale, _ = read_arguments(application["args"])
    (group,) = told["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (scale.min_replicas, scale.max_replicas)
    pod = group["template"]["spec"]
    limits = pod["containers"][0]["resources"]["limits"]
    assert float(limits["cpu"]) >= scale.cpus
    assert float(limits.get("nvidia.com/gpu", 0)) >= scale.gpus
    assert pod["terminationGracePeriodSeconds"] > scale.stop_timeout_s


def test_the_compose_file_gives_the_proxy_every_server() -> None:
    told = yaml.safe_load((DEPLOY / "proxy" / "compose.yaml").read_text("utf-8"))
    servers = {name for name in told["services"] if name != "proxy"}
    proxy = told["services"]["proxy"]
    assert {address.split(":")[0] for address in proxy["environment"].values()} == servers
    config = (DEPLOY / "proxy" / "haproxy.cfg").read_text("utf-8")
    assert set(re.findall(r"^\s+server \S+ \$\{(\w+)\}", config, re.M)) == {*proxy["environment"]}


@pytest.mark.slow  # nginx wants to write its logs, which is for a machine that one knows
@pytest.mark.parametrize("name", ["haproxy", "nginx"])
def test_the_proxy_reads_its_file(name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"no {name}")
    path = str(DEPLOY / "proxy" / ("haproxy.cfg" if name == "haproxy" else "nginx.conf"))
    command = [name, "-c", "-f", path] if name == "haproxy" else [name, "-t", "-q", "-c", path]
    servers = {"VIVACE_ONE": "127.0.0.1:8001", "VIVACE_TWO": "127.0.0.1:8002"}
    environment = {**os.environ, **servers}
    checked = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
