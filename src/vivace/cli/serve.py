"""`vivace serve`: settings, models, then requests until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vivace.cli.light import import_torch
from vivace.cli.streams import plain, tell
from vivace.errors import RequestError
from vivace.serve.settings import ServeSettings, field_names, public_name, resolve_settings

SPARE_FILES = 512  # besides connections
PACKAGES = ("fastapi", "uvicorn", "websockets", "python_multipart")


def serve(arguments: argparse.Namespace) -> int:
    config = None if arguments.config is None else Path(arguments.config)
    settings = resolve_settings(_flags(arguments), os.environ, config)
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise RequestError(
            f"the server needs {', '.join(missing)}: pip install 'vivace[server]' brings it"
        )
    for name, value in settings.describe().items():
        tell(f"{name:<24} {plain(value)}")
    _log_to_stderr()
    if all(spec.source is None for spec in settings.models) and settings.device in ("auto", "cpu"):
        import_torch()
    from vivace.serve.context import ServeContext
    from vivace.serve.server import Server

    _allow_files(settings.max_connections)
    tell(f"loading {', '.join(plain(spec.name) for spec in settings.models)}")
    server = Server(ServeContext.create(settings))
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(server.serve(lambda url: _say_ready(url, settings)))
    finally:
        loop.close()  # without waiting for a model that is still being loaded
    tell("stopped")
    return 0


def _flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the command line says, by the settings' own names."""
    return {name: getattr(arguments, public_name(name), None) for name in field_names()}


def _say_ready(url: str, settings: ServeSettings) -> None:
    url = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    key = f' -H "Authorization: Bearer ${settings.api_key_env}"' if settings.api_keys else ""
    model = settings.models[0].name
    tell(f"ready: {url}{settings.root_path}/")
    tell(
        f"curl {url}/v1/audio/speech{key} -H 'Content-Type: application/json' "
        f"""-d '{{"model": "{plain(model)}", "input": "Hello.", "voice": "alloy"}}' -o hello.mp3"""
    )


def _allow_files(num_connections: int) -> None:
    """Every connection is an open file, and many systems allow 1,024."""
    try:
        import resource  # not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _log_to_stderr() -> None:
    """One line a request; uvicorn's own lines would repeat paths and tracebacks."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("vivace")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    for name in ("uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
