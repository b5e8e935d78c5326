"""Measures the official package and faster-qwen3-tts with the same checkpoint and process."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vivace.cli.bench.latency import TEXT, Subject
from vivace.errors import UnsupportedRequestError


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    module: str
    kind: str
    device_argument: str


PEERS = (
    Peer("qwen-tts (official)", "qwen_tts", "Qwen3TTSModel", "device_map"),
    Peer("faster-qwen3-tts", "faster_qwen3_tts", "FasterQwen3TTS", "device"),
)


def measure_peers(subject: Subject, ours: float, *, num_frames: int) -> list[dict[str, Any]]:
    """One row per peer. `ours` is the speed of Vivace in times real time."""
    return [_measure(peer, subject, ours, num_frames) for peer in PEERS]


def _measure(peer: Peer, subject: Subject, ours: float, num_frames: int) -> dict[str, Any]:
    """Measure one peer. A failure is reported in the row, not raised."""
    try:
        kind = getattr(importlib.import_module(peer.module), peer.kind)
        theirs = _times_real_time(kind, peer, subject, num_frames)
    except ImportError as error:
        return {"peer": peer.name, "missing": str(error)}
    except Exception as error:
        return {"peer": peer.name, "failed": f"{type(error).__name__}: {error}"}
    return {
        "peer": peer.name,
        "times_real_time": round(theirs, 3),
        "times_faster": round(ours / theirs, 2),
    }


def _times_real_time(kind: Any, peer: Peer, subject: Subject, num_frames: int) -> float:
    tts = subject.tts
    placing = {peer.device_argument: str(tts.device), "dtype": tts.dtype}
    speak = _speaker(kind.from_pretrained(str(tts.checkpoint.folder), **placing), subject)
    speak(num_frames)  # warm-up
    began = time.perf_counter()
    waves, rate = speak(num_frames)
    return len(waves[0]) / float(rate) / (time.perf_counter() - began)


def _speaker(model: Any, subject: Subject) -> Callable[[int], tuple[list[Any], int]]:
    """A function that generates `TEXT` with the peer."""
    options = {"text": TEXT, "language": subject.options.get("language", "auto")}
    kind = subject.tts.model_type
    if kind == "custom_voice":
        generate = model.generate_custom_voice
        options["speaker"] = subject.options.get("voice") or subject.tts.speakers[0]
    elif kind == "voice_design":
        generate = model.generate_voice_design
        options["instruct"] = subject.options["instruct"]
    else:
        raise UnsupportedRequestError(
            "--compare needs a CustomVoice or VoiceDesign model; packages clone voices differently"
        )
    return lambda num_frames: generate(max_new_tokens=num_frames + 1, **options)
