"""`vivace serve` over the scripted backend, in processes of its own.

    python -m tests.support.scripted_server FLAGS...

For every line of stdin a server is forked (importing torch takes longer than all the rest); its own
words go to stderr. stdout tells `pid N` when it begins and `exit CODE` when it is over; the flag
`--abort` comes before the server's and makes one that does not drain.
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


def serve(flags: list[str]) -> int:
    if spare := os.environ.get("SCRIPTED_FILES"):  # it may open so many more
        most = len(os.listdir("/proc/self/fd")) + int(spare)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    num_slots = int(os.environ.get("SCRIPTED_SLOTS", "8"))
    plans = {ENDLESS: Plan(1_000_000)}
    backend = ScriptedSpeech(
        default=Plan(NUM_FRAMES), plans=plans, step_s=0.05, max_streams=num_slots
    )
    if flags[:1] == ["--abort"]:
        flags = flags[1:]
        Server.stop = lambda server: os._exit(0)  # type: ignore[method-assign]
    with patch("vivace.tts.build_backend", lambda *_: backend):
        return main(["serve", "--port=0", "--live=word", *flags])


def say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


def run() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    say("here")
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
        say(f"pid {child}")
        _, status = os.waitpid(child, 0)
        say(f"exit {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    run()
