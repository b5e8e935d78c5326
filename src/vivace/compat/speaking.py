"""Speaks requests as the official classes do: lists as a batch, runaway speech is returned."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from vivace.audio.clip import Audio
from vivace.engine.streams.batch import speak_batch
from vivace.engine.streams.chunks import TOGETHER, WHOLE
from vivace.engine.streams.stream import Stream, Wake
from vivace.errors import BatchError
from vivace.options import RAMP, ChunkFrames, SpeechOptions
from vivace.script.request import Request
from vivace.speech import AUTO_LANGUAGE
from vivace.tts import TTS
from vivace.voices.voice import Voice

log = logging.getLogger(__name__)

NUM_TOGETHER = 16  # concurrent texts of a list
PINNED = ("seed",)  # disables the retry after a runaway


def request(
    text: str,
    language: str | None,
    voice: str | Voice | None = None,
    instruct: str | None = None,
    *,
    is_whole: bool,
) -> Request:
    """A request for the unchanged text, in the layout of `non_streaming_mode`.

    An empty speaker is no speaker.
    """
    options = SpeechOptions(
        language=AUTO_LANGUAGE if language is None else language,
        instruct=instruct,
        text_layout="whole" if is_whole else "streamed",
        normalize=False,
    )
    return Request(text=text, voice=voice or None, options=options, verbatim=True)


def open_stream(
    tts: TTS,
    wanted: Request,
    sampling: Mapping[str, Any],
    wake: Wake | None = None,
    *,
    chunk_frames: ChunkFrames = RAMP,
) -> Stream:
    """Speech ends at the caller's `max_frames`; without it, the runaway guard stops speech."""
    is_guarded = "max_frames" not in sampling
    options = dataclasses.replace(wanted.options, guard=is_guarded, **sampling)
    wanted = dataclasses.replace(wanted, options=options)
    return tts.loaded.open(wanted, chunk_frames=chunk_frames, wake=wake)


def speak_together(
    tts: TTS, requests: Sequence[Request], sampling: Mapping[str, Any]
) -> list[Audio]:
    """The results of a batch, in order, each as if generated alone."""
    if len(requests) == 1:
        audios = [open_stream(tts, requests[0], sampling, chunk_frames=WHOLE).collect()]
    else:
        openers = [
            partial(open_stream, tts, wanted, sampling, chunk_frames=TOGETHER)
            for wanted in requests
        ]
        try:
            audios = speak_batch(openers, PINNED, NUM_TOGETHER)
        except BatchError as error:
            raise next(iter(error.errors.values())) from None
    for audio in audios:
        note_runaway(audio.finish_reason, sampling)
    return audios


def note_runaway(finish_reason: str | None, sampling: Mapping[str, Any]) -> None:
    """Log a warning if the guard stopped speech that had no limit."""
    if finish_reason in ("stall", "length") and "max_frames" not in sampling:
        log.warning("speech did not end by itself and was stopped (%s)", finish_reason)
