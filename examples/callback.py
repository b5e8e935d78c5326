"""Speak what a language model writes, from its callback for every token.

    python examples/callback.py

`Speaker` needs no framework: call it with every token, then `finish()`. It is also a callback
handler of LangChain if that is installed: `model.invoke(question, config={"callbacks": [speaker]})`
speaks while the model writes, and no model is needed to try it, because one is played here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

from vivace import TTS
from vivace.errors import StreamClosedError

try:
    from langchain_core.callbacks import BaseCallbackHandler
except ImportError:  # then it is called by hand
    BaseCallbackHandler = object  # type: ignore[assignment,misc]


class Speaker(BaseCallbackHandler):
    """Speaks tokens as they come, in a thread; `play` is given every chunk of audio."""

    def __init__(self, tts: TTS, play: Any, **options: Any) -> None:
        self._tts, self._play, self._options = tts, play, options
        self._tokens: SimpleQueue[str | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._stream: Any = None

    def __call__(self, token: str) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._speak)
            self._thread.start()
        self._tokens.put(token)

    def finish(self) -> None:
        """Wait until all of it is spoken."""
        self._tokens.put(None)
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        self._tokens = SimpleQueue()

    def interrupt(self) -> None:
        """The listener speaks: stop at once."""
        if self._stream is not None:
            self._stream.close()

    def _speak(self) -> None:
        self._stream = stream = self._tts.stream(self._written(), **self._options)
        with stream, suppress(StreamClosedError):  # by `interrupt`
            for chunk in stream:
                self._play(chunk)

    def _written(self) -> Iterator[str]:
        yield from iter(self._tokens.get, None)

    # LangChain's names
    def on_llm_new_token(self, token: str, **_: Any) -> None:
        if token:
            self(token)

    def on_llm_end(self, response: Any, **_: Any) -> None:
        self.finish()

    def on_llm_error(self, error: BaseException, **_: Any) -> None:
        self.interrupt()
        self.finish()


def main() -> None:
    began = time.perf_counter()
    num_samples = 0

    def play(chunk: Any) -> None:
        nonlocal num_samples
        num_samples += len(chunk.samples)
        print(f"{time.perf_counter() - began:5.2f} s: {chunk}")

    speaker = Speaker(TTS.load(), play)
    began = time.perf_counter()
    for token in ["Hel", "lo ", "there", ". ", "I ", "speak ", "while ", "I ", "write", "."]:
        speaker(token)
    speaker.finish()
    print(f"{num_samples / 24_000:.2f} s of speech", file=sys.stderr)


if __name__ == "__main__":
    main()
