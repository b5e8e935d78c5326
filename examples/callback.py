"""Speak what a language model writes, from its callback for every token.

    python examples/callback.py

`Speaker` needs no framework: call it with every token, then `finish()`. It is also a callback
handler of LangChain if that is installed. `model.stream(question, config={"callbacks": [speaker]})`
is spoken while the model writes, `model.invoke(...)` when the whole reply is there. No model is
needed to try it: `main` plays one.
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
except ImportError:  # Speaker is called by hand
    BaseCallbackHandler = object  # type: ignore[assignment,misc]


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or a list of strings and blocks.

    Blocks without text to speak, such as tool calls and images, are left out.
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
        self._lock = Lock()  # between `interrupt` and the thread that opens the stream
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
        self._tokens.put(None)  # the thread may wait for a token

    def finish(self) -> None:
        """Wait until the reply is spoken; an error of the thread is raised."""
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
            with stream, suppress(StreamClosedError):  # by `interrupt`
                for chunk in stream:
                    self._play(chunk)
        except BaseException as error:  # it is raised by `finish`
            self._error = error

    def _written(self) -> Iterator[str]:
        yield from iter(self._tokens.get, None)


class Speaker(BaseCallbackHandler):
    """Speaks tokens as they come, in a thread; `play` is called with every chunk of audio."""

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
        """Stop at once. Later tokens of the same reply, until `finish`, are not spoken."""
        if self._reply is not None:
            self._reply.interrupt()

    def _open(self) -> Reply:
        if self._reply is None:
            self._reply = Reply(self._tts, self._play, self._options)
        return self._reply

    # LangChain's names
    def on_llm_start(self, *_: Any, **__: Any) -> None:
        self._open()  # an interruption before the first token counts

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        self._open()

    def on_llm_new_token(self, token: Any, **_: Any) -> None:
        self(token)

    def on_llm_end(self, response: Any, **_: Any) -> None:
        """Without streaming no token has come: the whole reply is spoken now."""
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
