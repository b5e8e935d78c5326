"""Speak the reply of a language model from its token callback.

    python examples/callback.py        # simulates a model

Call `Speaker` with every token, then `finish()`. Replace `print` by a function that plays chunks.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from vivace import TTS, AudioChunk
from vivace.errors import StreamClosedError


class Speaker:
    """Speaks tokens as they arrive, in a thread that calls `play` with every chunk of audio."""

    def __init__(self, tts: TTS, play: Callable[[AudioChunk], None], **options: Any) -> None:
        self._tts, self._play, self._options = tts, play, options
        self._thread = ThreadPoolExecutor(1)
        self._reset()

    def _reset(self) -> None:
        self._tokens, self._stream, self._speech = SimpleQueue[str | None](), None, None

    def __call__(self, token: str) -> None:
        if token and self._stream is None:
            self._stream = self._tts.stream(iter(self._tokens.get, None), **self._options)
            self._speech = self._thread.submit(self._speak, self._stream)
        self._tokens.put(token)

    def _speak(self, stream: Any) -> None:
        with stream, suppress(StreamClosedError):  # `interrupt` closes the stream
            for chunk in stream:
                self._play(chunk)

    def interrupt(self) -> None:
        """Stop immediately. Further tokens of this reply are ignored, until `finish`."""
        if self._stream is not None:
            self._stream.close()
        self._tokens.put(None)

    def finish(self) -> None:
        """End the reply and wait until it is spoken. Errors of the speech are raised here."""
        speech = self._speech
        self._tokens.put(None)
        self._reset()
        if speech is not None:
            speech.result()


if __name__ == "__main__":
    speaker = Speaker(TTS.load(), print)
    for word in ["Hello", "there.", "I", "speak", "while", "I", "write."]:
        speaker(f"{word} ")
    speaker.finish()
