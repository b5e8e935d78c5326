"""`vivace serve` and `vivace wyoming`: resolve settings, load models, serve until stopped."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vivace.cli.light import import_torch
from vivace.cli.server_messages import ServerMessages
from vivace.cli.server_options import HTTP_ONLY
from vivace.cli.streams import printable
from vivace.errors import EngineLostError, RequestError, TTSError, install_command
from vivace.serve.garbage_collection import collect_less_often
from vivace.serve.http.listener import Listeners
from vivace.serve.observability.logs import log_to_stderr, show_events
from vivace.serve.processes.worker_count import count_workers
from vivace.serve.setting_sources import resolve_settings, unknown_variables
from vivace.serve.settings import ServeSettings, public_name, setting_names

if TYPE_CHECKING:
    from vivace.serve.context import ServeContext

SPARE_FILES = 512  # besides connections
GAVE_UP = 70  # exit code: the engine crashed too often
FAILED = 1  # exit code of an error
CRASH_STATE = "VIVACE_CRASH_STATE"  # variable with the crashes of the previous process
WYOMING_PORT = 10_200
WYOMING_VERSIONS, WYOMING_TESTED = (1, 7), "1.10.2"  # the first with streams, and the tested one


def serve(arguments: argparse.Namespace) -> int:
    return _serve_with_messages(arguments, {}, has_http=True)


def serve_wyoming(arguments: argparse.Namespace) -> int:
    return _serve_with_messages(arguments, {"wyoming_port": WYOMING_PORT}, has_http=False)


def _serve_with_messages(
    arguments: argparse.Namespace, defaults: dict[str, Any], *, has_http: bool
) -> int:
    """With `--log-format json` every line is JSON, error messages included."""
    log_format = arguments.log_format or os.environ.get("VIVACE_LOG_FORMAT")
    try:
        config = None if arguments.config is None else Path(arguments.config)
        settings = resolve_settings(_flags(arguments), os.environ, config, defaults)
        log_format = settings.log_format
        log_to_stderr(log_format)
        return _serve(settings, has_http=has_http)
    except TTSError as error:
        if log_format != "json":
            raise
        log_to_stderr(log_format)
        ServerMessages(log_format).fail(error)
        return FAILED


def _serve(settings: ServeSettings, *, has_http: bool = True) -> int:
    if settings.wyoming_port is not None:
        _check_wyoming(settings)
    messages = ServerMessages(settings.log_format)
    for words in unknown_variables(os.environ, {settings.api_key_env, CRASH_STATE}):
        messages.warn(words)
    hidden = set() if has_http else HTTP_ONLY
    messages.show_settings(settings, settings.describe().keys() - hidden)
    num_workers = count_workers(settings) if has_http else 1
    if num_workers > 1:
        return _supervise(settings, num_workers, messages)
    with Listeners.bind(settings, has_http=has_http) as listeners:  # before anything is loaded
        return _serve_here(settings, messages, listeners, has_http=has_http)


def _serve_here(
    settings: ServeSettings, messages: ServerMessages, listeners: Listeners, *, has_http: bool
) -> int:
    """Run the engine and HTTP in this process, until stopped."""
    if all(spec.source is None for spec in settings.models) and settings.device in ("auto", "cpu"):
        import_torch()
    from vivace.serve.context import ServeContext

    # With text logs, events before "ready" are shown only with --verbose.
    show_events(is_quiet=settings.log_format == "text" and not settings.verbose)
    _allow_files(settings.max_connections * (has_http + (settings.wyoming_port is not None)))
    messages.say(f"loading {', '.join(printable(spec.name) for spec in settings.models)}")
    return _run(ServeContext.create(settings), messages, listeners, has_http=has_http)


def _run(
    context: ServeContext, messages: ServerMessages, listeners: Listeners, *, has_http: bool
) -> int:
    """Serve until stopped. If the device is lost, replace this process by a new one."""
    from vivace.serve.models import crashes
    from vivace.serve.server import Server

    recovery = context.models.recovery
    if state := os.environ.pop(CRASH_STATE, ""):
        crashes.load_state(state, recovery.crashes, recovery.quarantine)
    server = Server(context, has_http=has_http, listeners=listeners)

    def on_ready(url: str) -> None:
        collect_less_often()
        show_events()
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
        pause_s = recovery.crashes.pause_s
        messages.say(f"restarting in {pause_s:g} s")
        restart(pause_s, crashes.dump_state(recovery.crashes, recovery.quarantine))
    finally:
        loop.close()  # does not wait for a model that is being loaded
    messages.say("stopped")
    return 0


def _supervise(settings: ServeSettings, num_workers: int, messages: ServerMessages) -> int:
    """Run the engine and the workers in processes of their own, until stopped."""
    from vivace.serve.processes.supervisor import Supervisor

    _allow_files(settings.max_connections * (1 + (settings.wyoming_port is not None)))
    names = ", ".join(printable(spec.name) for spec in settings.models)

    def show_ready(url: str, wyoming_url: str | None, able: list[str]) -> None:
        if wyoming_url is not None:
            messages.say(f"wyoming: {wyoming_url}", url=wyoming_url)
        _say_address(url, settings, able, messages)

    async def run() -> int:
        supervisor = Supervisor(settings, num_workers, messages, show_ready)  # reserves the ports
        messages.say(f"loading {names} for {num_workers} workers")
        return await supervisor.run()

    code = asyncio.run(run())
    if code == 0:
        messages.say("stopped")
    return code


def restart(pause_s: float, crash_state: str) -> NoReturn:
    """Replace this process, which has lost its device, by a new one with the same command."""
    time.sleep(pause_s)
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, {**os.environ, CRASH_STATE: crash_state})


def _flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the flags by field name."""
    return {name: getattr(arguments, public_name(name), None) for name in setting_names()}


def _check_wyoming(settings: ServeSettings) -> None:
    from importlib.metadata import PackageNotFoundError, version

    install = install_command("wyoming")
    try:
        found = version("wyoming")
    except PackageNotFoundError:
        raise RequestError(f"Wyoming needs the package wyoming: {install}") from None
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if numbers < WYOMING_VERSIONS or numbers[0] != WYOMING_VERSIONS[0]:
        raise RequestError(
            f"wyoming {found} is not supported; tested version: {WYOMING_TESTED}: {install}"
        )
    if settings.zeroconf and find_spec("zeroconf") is None:
        raise RequestError(f"--zeroconf needs the package zeroconf: {install}")


def say_ready(url: str, context: ServeContext, messages: ServerMessages) -> None:
    """Print the URL and a curl command; without a voice, the command that creates one."""
    models = context.models
    able = [name for name in models.names if (voices := models.voices(name)) and voices.can_speak]
    _say_address(url, context.settings, able, messages)


def _say_address(
    url: str, settings: ServeSettings, able: list[str], messages: ServerMessages
) -> None:
    """`able`: names of the models that have a voice."""
    url = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    messages.say(f"ready: {url}{settings.root_path}/", url=f"{url}{settings.root_path}/")
    if settings.log_format != "json":
        messages.say(_example(url, settings, able))


def _example(url: str, settings: ServeSettings, able: list[str]) -> str:
    first = "%%,*" if len(settings.api_keys) > 1 else ""
    bearer = f"Authorization: Bearer ${{{settings.api_key_env}{first}}}"
    key = f' -H "{bearer}"' if settings.api_keys else ""
    curl = f"curl {'-k ' if settings.tls_cert else ''}{url}/v1/audio"
    if not able:
        return f"{curl}/voices{key} -F name=me -F audio_sample=@me.wav"
    fields = json.dumps({"model": printable(able[0]), "input": "Hello.", "voice": "alloy"})
    fields = fields.replace("'", r"'\''")
    return f"{curl}/speech{key} -H 'Content-Type: application/json' -d '{fields}' -o hello.mp3"


def _allow_files(num_connections: int) -> None:
    """Raise the limit of open files: every connection is one, and many systems allow 1,024."""
    try:
        import resource  # not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
