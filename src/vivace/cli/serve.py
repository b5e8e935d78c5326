"""`vivace serve`: settings, models, then requests until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vivace.cli.light import import_torch
from vivace.cli.server_messages import ServerMessages
from vivace.cli.server_options import WYOMING_FLAGS
from vivace.cli.streams import plain
from vivace.errors import EngineLostError, RequestError, TTSError
from vivace.serve.logs import log_to_stderr, show_events
from vivace.serve.settings import (
    ServeSettings,
    field_names,
    public_name,
    resolve_settings,
    unknown_variables,
)

if TYPE_CHECKING:
    from vivace.serve.context import ServeContext

SPARE_FILES = 512  # besides connections
GAVE_UP = 70  # exit code: the engine died too often
FAILED = 1  # exit code of an error
LAST_LIFE = "VIVACE_LAST_LIFE"  # what the process before this one knew of deaths
PACKAGES = ("fastapi", "uvicorn", "websockets", "python_multipart")
WYOMING_PORT = 10_200
SHOWN_ALONE = {*WYOMING_FLAGS, "model", "voices", "wyoming-port"}
WYOMING_VERSIONS, WYOMING_TESTED = (1, 7), "1.10.2"  # the first with streams, and the tested one


def serve(arguments: argparse.Namespace) -> int:
    return _serve_with_messages(arguments, {}, has_http=True)


def serve_wyoming(arguments: argparse.Namespace) -> int:
    return _serve_with_messages(arguments, {"wyoming_port": WYOMING_PORT}, has_http=False)


def _serve_with_messages(
    arguments: argparse.Namespace, defaults: dict[str, Any], *, has_http: bool
) -> int:
    """With `--log-format json` every line is JSON, those of errors included."""
    log_format = arguments.log_format or os.environ.get("VIVACE_LOG_FORMAT")
    try:
        settings = _resolve(arguments, defaults)
        log_format = settings.log_format
        log_to_stderr(log_format)
        return _serve(settings, has_http=has_http)
    except TTSError as error:
        if log_format != "json":
            raise
        log_to_stderr(log_format)
        ServerMessages(log_format).fail(error)
        return FAILED


def _resolve(arguments: argparse.Namespace, defaults: dict[str, Any]) -> ServeSettings:
    config = None if arguments.config is None else Path(arguments.config)
    return resolve_settings(_flags(arguments), os.environ, config, defaults)


def _serve(settings: ServeSettings, *, has_http: bool = True) -> int:
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise RequestError(
            f"the server needs {', '.join(missing)}: pip install 'vivace[server]' brings it"
        )
    if settings.wyoming_port is not None:
        _check_wyoming(settings)
    messages = ServerMessages(settings.log_format)
    for words in unknown_variables(os.environ, {settings.api_key_env, LAST_LIFE}):
        messages.warn(words)
    names = settings.describe()
    is_shown = {name for name in names if has_http or name.replace("_", "-") in SHOWN_ALONE}
    messages.show_settings(settings, is_shown)
    if all(spec.source is None for spec in settings.models) and settings.device in ("auto", "cpu"):
        import_torch()
    from vivace.serve.context import ServeContext

    # A person sees a short block until the server is ready, and a program all events.
    show_events(is_quiet=settings.log_format == "text" and not settings.verbose)
    _allow_files(settings.max_connections * (has_http + (settings.wyoming_port is not None)))
    messages.say(f"loading {', '.join(plain(spec.name) for spec in settings.models)}")
    return _run(ServeContext.create(settings), messages, has_http=has_http)


def _run(context: ServeContext, messages: ServerMessages, *, has_http: bool) -> int:
    """Serve until it is told to stop; where the device is lost, as a new process."""
    from vivace.serve import deaths
    from vivace.serve.server import Server

    recovery = context.models.recovery
    if told := os.environ.pop(LAST_LIFE, ""):
        deaths.load(told, recovery.deaths, recovery.quarantine)
    server = Server(context, has_http=has_http)

    def on_ready(url: str) -> None:
        gc.collect()
        show_events()
        gc.freeze()  # else a collection looks through all that was imported: 0.1 s for everybody
        if server.wyoming_url is not None:
            messages.say(f"wyoming: {server.wyoming_url}", url=server.wyoming_url)
        if has_http:
            say_ready(url, context, messages)
        else:
            messages.say("ready")

    server.on_drain, server.on_cut = messages.show_drain, messages.show_cut
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(server.serve(on_ready))
    except EngineLostError as loss:
        if not loss.needs_process:
            messages.fail(loss)
            return GAVE_UP
        pause_s = recovery.deaths.pause_s
        messages.say(f"starting again in {pause_s:g} s")
        start_again(pause_s, deaths.dump(recovery.deaths, recovery.quarantine))
    finally:
        loop.close()  # without waiting for a model that is still being loaded
    messages.say("stopped")
    return 0


def start_again(pause_s: float, last_life: str) -> NoReturn:
    """Become a new process with the same command and id: this one has lost its device."""
    time.sleep(pause_s)
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, {**os.environ, LAST_LIFE: last_life})


def _flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the command line says, by the settings' own names."""
    return {name: getattr(arguments, public_name(name), None) for name in field_names()}


def _check_wyoming(settings: ServeSettings) -> None:
    from importlib.metadata import PackageNotFoundError, version

    install = "pip install 'vivace[wyoming]'"
    try:
        found = version("wyoming")
    except PackageNotFoundError:
        raise RequestError(f"Wyoming needs the package wyoming: {install} brings it") from None
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if numbers < WYOMING_VERSIONS or numbers[0] != WYOMING_VERSIONS[0]:
        raise RequestError(
            f"wyoming {found} is installed and {WYOMING_TESTED} is what was tested: {install}"
        )
    if settings.zeroconf and find_spec("zeroconf") is None:
        raise RequestError(f"--zeroconf needs the package zeroconf: {install} brings it")


def say_ready(url: str, context: ServeContext, messages: ServerMessages) -> None:
    """With a command that works; if there is no voice yet, one that makes a voice."""
    settings = context.settings
    url = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    messages.say(f"ready: {url}{settings.root_path}/", url=f"{url}{settings.root_path}/")
    if settings.log_format != "json":
        messages.say(_example(url, context))


def _example(url: str, context: ServeContext) -> str:
    settings, models = context.settings, context.models
    first = "%%,*" if len(settings.api_keys) > 1 else ""
    bearer = f"Authorization: Bearer ${{{settings.api_key_env}{first}}}"
    key = f' -H "{bearer}"' if settings.api_keys else ""
    curl = f"curl {'-k ' if settings.tls_cert else ''}{url}/v1/audio"
    able = [name for name in models.names if (voices := models.voices(name)) and voices.can_speak]
    if not able:
        return f"{curl}/voices{key} -F name=me -F audio_sample=@me.wav"
    fields = json.dumps({"model": plain(able[0]), "input": "Hello.", "voice": "alloy"})
    fields = fields.replace("'", r"'\''")
    return f"{curl}/speech{key} -H 'Content-Type: application/json' -d '{fields}' -o hello.mp3"


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
