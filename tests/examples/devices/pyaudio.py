"""PyAudio, as pipecat uses it, with the recorded devices."""

from __future__ import annotations

from typing import Any

from tests.examples.devices import recorded

paInt16, paContinue = 8, 0


class InputStream(recorded.Microphone):
    def __init__(self, rate: int, frames_per_buffer: int, stream_callback: Any) -> None:
        def pass_on(content: bytes) -> None:
            stream_callback(content, frames_per_buffer, None, 0)

        super().__init__(rate, frames_per_buffer, pass_on)

    start_stream = recorded.Microphone.start
    stop_stream = recorded.Microphone.close


class OutputStream(recorded.Loudspeaker):
    def start_stream(self) -> None: ...

    def stop_stream(self) -> None: ...


class PyAudio:
    def get_format_from_width(self, width: int) -> int:
        return paInt16

    def open(self, *, rate: int, **options: Any) -> InputStream | OutputStream:
        if options.get("input"):
            return InputStream(rate, options["frames_per_buffer"], options["stream_callback"])
        return OutputStream(rate)
