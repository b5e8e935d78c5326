"""`python -m vivace.compat COMMAND`: run an installed command with the `faster_qwen3_tts` shim."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

from vivace.compat.shim import install
from vivace.errors import IntegrationError


def main() -> object:
    """Run a console script in this process with the remaining arguments."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m vivace.compat COMMAND [ARGUMENTS], COMMAND as installed")
    name = sys.argv[1]
    found = list(entry_points(group="console_scripts", name=name))
    if not found:
        raise SystemExit(f"vivace: no command named {name!r} is installed in {sys.prefix}")
    try:
        install()
    except IntegrationError as error:
        raise SystemExit(f"vivace: {error}") from error
    sys.argv = sys.argv[1:]
    return found[0].load()()


if __name__ == "__main__":
    sys.exit(main())  # type: ignore[arg-type]  # as console scripts do
