"""Takes a request and hands out its stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vivace.engine.engine import Engine
from vivace.engine.intake import Intake, Request
from vivace.engine.live_text import LiveText, StoppableText
from vivace.engine.parts import make_parts
from vivace.engine.session import Opening, Session
from vivace.engine.stream import Stream
from vivace.model.config import CodecConfig
from vivace.speech import MAX_SEED, SamplingParams


@dataclass(frozen=True, slots=True)
class Desk:
    intake: Intake
    engine: Engine
    codec_config: CodecConfig

    def open(
        self,
        request: Request,
        sampling: SamplingParams,
        sizes: Iterator[int],
        *,
        speed: float,
        is_guarded: bool,
        is_limited: bool,
    ) -> Stream:
        """A stream whose chunks have these numbers of frames; nothing runs before the first.

        `is_limited`: `max_frames` is the caller's and holds for the whole text; else it is the
        checkpoint's and holds for each utterance.
        """
        self.intake.check(request)
        text = request.text if isinstance(request.text, str) else StoppableText(request.text)
        request = dataclasses.replace(request, text=text)

        def open_session(
            index: int, write_opening: Callable[[], Opening], *, live: LiveText | None = None
        ) -> Session:
            seed = ((sampling.seed or 0) + index) % (MAX_SEED + 1)
            return Session(
                engine=self.engine,
                write_opening=write_opening,
                sampling=sampling.replace(seed=seed),
                live=live,
                is_guarded=is_guarded,
                has_budget=is_guarded and not is_limited,
                keeps_codes=self.intake.continues,
            )

        parts = make_parts(self.intake, request, open_session)
        return Stream(
            parts,
            self.codec_config,
            sizes,
            seed=sampling.seed or 0,
            max_frames=sampling.max_frames if is_limited else None,
            trim=request.trim,
            speed=speed,
            stop_text=text.stop if isinstance(text, StoppableText) else lambda: None,
        )
