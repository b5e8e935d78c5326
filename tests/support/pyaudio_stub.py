"""A PyAudio stub for RealtimeTTS that accepts audio without playing it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest


class PyAudio:
    """An output device that accepts all samples at once."""

    played = bytearray()

    def get_sample_size(self, format: int) -> int:
        return 2

    def get_default_output_device_info(self) -> dict[str, Any]:
        return {"index": 0}

    def get_device_info_by_index(self, index: int) -> dict[str, Any]:
        return {"name": "test", "maxOutputChannels": 1, "defaultSampleRate": 24_000, "index": 0}

    def is_format_supported(self, *_: Any, **__: Any) -> bool:
        return True

    def open(self, **_: Any) -> PyAudio:
        return self

    def write(self, data: bytes) -> None:
        PyAudio.played += data

    def is_active(self) -> bool:
        return True

    def start_stream(self) -> None: ...

    def stop_stream(self) -> None: ...

    def close(self) -> None: ...


def install_loudspeaker(monkeypatch: pytest.MonkeyPatch) -> None:
    module, core = ModuleType("pyaudio"), ModuleType("pyaudio._portaudio")
    names = ("paInt16", "paCustomFormat", "paFloat32", "paInt32", "paInt24", "paInt8", "paUInt8")
    for number, name in enumerate(names):
        setattr(module, name, 8 if name == "paInt16" else 100 + number)
    core.paFramesPerBufferUnspecified = 0  # type: ignore[attr-defined]
    module.PyAudio, module._portaudio = PyAudio, core  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyaudio", module)
    monkeypatch.setitem(sys.modules, "pyaudio._portaudio", core)
    monkeypatch.setattr(PyAudio, "played", bytearray())
