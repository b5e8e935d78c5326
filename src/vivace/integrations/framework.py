"""Checks that a framework is installed in a tested major version before it is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from vivace.errors import IntegrationError, install_command


@contextmanager
def framework(package: str, *, tested: str, extra: str) -> Iterator[None]:
    """Context for the imports of a framework. Any problem raises IntegrationError."""
    install = install_command(extra)
    try:
        found = version(package)
    except PackageNotFoundError:
        raise IntegrationError(
            f"vivace.integrations.{extra} needs {package}, which is not installed: {install}"
        ) from None
    if _major(found) != _major(tested):
        raise IntegrationError(
            f"{package} {found} is installed, and vivace.integrations.{extra} was tested with "
            f"{tested}: {install}"
        )
    try:
        yield
    except IntegrationError:
        raise
    except ImportError as error:
        raise IntegrationError(
            f"{package} {found} cannot be imported as {tested} can, with which "
            f"vivace.integrations.{extra} was tested ({error}): {install}"
        ) from error


def _major(version: str) -> tuple[str, ...]:
    """The compatible part of a version: `2`, or `0.4` while the first number is 0."""
    parts = version.split(".")
    return tuple(parts[:2] if parts[0] == "0" else parts[:1])
