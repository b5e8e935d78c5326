"""Runs `vivace serve` with the scripted backend in forked processes.

    python -m tests.support.scripted_server FLAGS...

Forks a server for each line of stdin, because importing torch takes most of a server's start. The
server's messages go to stderr. stdout gets `pid N` at its start and `exit CODE` at its end. The
flag `--abort`, before the server's flags, makes a server that does not drain.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from unittest.mock import patch

from tests.support.scripted_tts import Plan, ScriptedSpeech
from vivace.cli.main import main
from vivace.serve.server import Server

NUM_FRAMES = 60
ENDLESS = 7  # a seed


def abort(server: Server, number: int = signal.SIGTERM) -> None:
    """Ends the process without a drain, in place of `Server.stop`."""
    os._exit(0)


def serve(flags: list[str]) -> int:
    if spare := os.environ.get("SCRIPTED_FILES"):  # number of further files that it may open
        most = len(os.listdir("/proc/self/fd")) + int(spare)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    num_slots = int(os.environ.get("SCRIPTED_SLOTS", "8"))
    plans = {ENDLESS: Plan(1_000_000)}
    backend = ScriptedSpeech(
        default=Plan(NUM_FRAMES), plans=plans, step_s=0.05, max_streams=num_slots
    )
    if flags[:1] == ["--abort"]:
        flags = flags[1:]
        Server.stop = abort  # type: ignore[assignment,method-assign]
    with patch("vivace.engine.checkpoints.loading.build_backend", lambda *_: backend):
        return main(["serve", "--port=0", "--live=word", *flags])


def report(word: str) -> None:
    os.write(1, f"{word}\n".encode())


def run() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report("ready")
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            os.setsid()
            code = 1
            try:
                code = serve(sys.argv[1:])
            finally:
                sys.stderr.flush()
                os._exit(code)
        report(f"pid {child}")
        _, status = os.waitpid(child, 0)
        report(f"exit {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    run()
