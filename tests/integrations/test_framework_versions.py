"""A missing framework or another major version raises IntegrationError with a hint."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from vivace.errors import IntegrationError
from vivace.integrations.framework import framework

MODULES = {
    "pipecat": ("pipecat-ai", "1.14.0"),
    "livekit": ("livekit-agents", "1.8.9"),
    "realtimetts": ("realtimetts", "0.8.10"),
}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Replace the installed versions, by package."""
    found: dict[str, str] = {}

    def version(package: str) -> str:
        if package not in found:
            raise PackageNotFoundError(package)
        return found[package]

    monkeypatch.setattr("vivace.integrations.framework.version", version)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, f"vivace.integrations.{name}", raising=False)
    return found


@pytest.mark.parametrize("name", MODULES)
def test_missing_framework_raises_with_the_install_command(
    name: str, installed: dict[str, str]
) -> None:
    package, _ = MODULES[name]
    error = rf"needs {package}, which is not installed: pip install '\.\[{name}\]'"
    with pytest.raises(IntegrationError, match=error):
        importlib.import_module(f"vivace.integrations.{name}")


@pytest.mark.parametrize("name", MODULES)
def test_other_major_version_raises_with_the_tested_version(
    name: str, installed: dict[str, str]
) -> None:
    package, tested = MODULES[name]
    installed[package] = "2.0.1"
    error = f"{package} 2.0.1 is installed, and vivace.integrations.{name} was tested with {tested}"
    with pytest.raises(IntegrationError, match=error):
        importlib.import_module(f"vivace.integrations.{name}")


@pytest.mark.parametrize(
    ("tested", "found", "is_taken"),
    [
        ("1.14.0", "1.14.0", True),
        ("1.14.0", "1.99.3", True),
        ("1.14.0", "2.0.0", False),
        ("0.8.10", "0.8.11", True),
        ("0.8.10", "0.9.0", False),  # before 1.0 the second number is the major version
        ("0.8.10", "1.8.10", False),
    ],
)
def test_major_version_is_compared(
    tested: str, found: str, is_taken: bool, installed: dict[str, str]
) -> None:
    installed["talker"] = found
    taken = []
    try:
        with framework("talker", tested=tested, extra="talker"):
            taken.append(1)
    except IntegrationError:
        pass
    assert bool(taken) is is_taken


def test_missing_name_in_the_framework_raises_integration_error(installed: dict[str, str]) -> None:
    installed["talker"] = "1.99.0"
    error = "talker 1.99.0 cannot be imported as 1.0.0 can"
    with (
        pytest.raises(IntegrationError, match=error),
        framework("talker", tested="1.0.0", extra="talker"),
    ):
        from json import no_such_name  # type: ignore[attr-defined]  # noqa: F401
