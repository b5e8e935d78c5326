"""Speak the reply of a language model from its token callback.

    python examples/callback.py

`Speaker` needs no framework: call it with every token, then `finish()`. If LangChain is installed,
it is also a callback handler: `model.stream(question, config={"callbacks": [speaker]})` is spoken
while the model writes, `model.invoke(...)` when the reply is complete. `main` simulates a model.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from vivace import TTS
from vivace.errors import StreamClosedError

try:
    from langchain_core.callbacks import BaseCallbackHandler
except ImportError:  # without LangChain, call Speaker directly
    BaseCallbackHandler = object  # type: ignore[assignment,misc]


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or a list of strings and blocks.

    Blocks without text, such as tool calls and images, are skipped.
    """
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return content.get("text") or "" if content.get("type", "text") == "text" else ""
    return "".join(map(text_of, content or ()))


class Reply:
    """One reply of the model: its tokens, and the thread that speaks them."""

    def __init__(self, tts: TTS, play: Any, options: dict[str, Any]) -> None:
        self._tts, self._play, self._options = tts, play, options
        self._tokens: SimpleQueue[str | None] = SimpleQueue()
        self._lock = Lock()  # protects the stream against `interrupt` while the thread opens it
        self._stream: Any = None
        self._is_interrupted = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._speak)
        self.has_begun = False

    def add(self, token: str) -> None:
        if not self.has_begun and not self._is_interrupted:
            self.has_begun = True
            self._thread.start()
        self._tokens.put(token)

    def interrupt(self) -> None:
        with self._lock:
            self._is_interrupted = True
            stream = self._stream
        if stream is not None:
            stream.close()
        self._tokens.put(None)  # wakes the thread if it waits for a token

    def finish(self) -> None:
        """Wait until the reply is spoken. Raises the error of the thread."""
        self._tokens.put(None)
        if self.has_begun:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _speak(self) -> None:
        try:
            stream = self._tts.stream(iter(self._written()), **self._options)
            with self._lock:
                self._stream = stream
                if self._is_interrupted:
                    stream.close()
            with stream, suppress(StreamClosedError):  # `interrupt` closes the stream
                for chunk in stream:
                    self._play(chunk)
        except BaseException as error:  # `finish` raises it
            self._error = error

    def _written(self) -> Iterator[str]:
        yield from iter(self._tokens.get, None)


class Speaker(BaseCallbackHandler):
    """Speaks tokens as they arrive, in a thread that calls `play` with every chunk of audio."""

    def __init__(self, tts: TTS, play: Any, **options: Any) -> None:
        self._tts, self._play, self._options = tts, play, options
        self._reply: Reply | None = None

    def __call__(self, token: Any) -> None:
        """Add a token: a string, or LangChain's list of content blocks."""
        if text := text_of(token):
            self._open().add(text)

    def finish(self) -> None:
        """End the reply and wait until it is spoken. Errors of the speech are raised here."""
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.finish()

    def interrupt(self) -> None:
        """Stop immediately. Tokens until the next `finish` are ignored."""
        if self._reply is not None:
            self._reply.interrupt()

    def _open(self) -> Reply:
        if self._reply is None:
            self._reply = Reply(self._tts, self._play, self._options)
        return self._reply

    # callbacks of LangChain
    def on_llm_start(self, *_: Any, **__: Any) -> None:
        self._open()  # so that an interruption before the first token is remembered

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        self._open()

    def on_llm_new_token(self, token: Any, **_: Any) -> None:
        self(token)

    def on_llm_end(self, response: Any, **_: Any) -> None:
        """Speak the whole reply if the model did not stream tokens."""
        if not self._open().has_begun:
            generation = response.generations[0][0]
            message = getattr(generation, "message", None)
            self(generation.text if message is None else message.content)
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
