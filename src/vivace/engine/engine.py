"""Streams over one backend; the only caller of sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Lock

from vivace.backends.base import Backend
from vivace.engine.intake import Intake, Request
from vivace.engine.live_text import LiveText
from vivace.engine.session import Session
from vivace.engine.stream import Stream
from vivace.model.config import CodecConfig, ModelConfig
from vivace.prompt import Prompt
from vivace.speech import MAX_SEED, SamplingParams


@dataclass(frozen=True, slots=True)
class Engine:
    """What several streams share: they take turns at the backend, from whichever thread."""

    config: ModelConfig
    codec_config: CodecConfig
    backend: Backend
    intake: Intake
    lock: Lock = field(default_factory=Lock)

    def open(
        self,
        request: Request,
        sampling: SamplingParams,
        sizes: Iterator[int],
        *,
        is_guarded: bool,
        has_budget: bool,
    ) -> Stream:
        """A stream whose chunks have these numbers of frames; nothing runs before the first."""
        self.intake.check(request)

        def open_session(
            index: int, write_prompt: Callable[[], Prompt], *, live: LiveText | None = None
        ) -> Session:
            seed = ((sampling.seed or 0) + index) % (MAX_SEED + 1)
            return Session(
                backend=self.backend,
                lock=self.lock,
                write_prompt=write_prompt,
                sampling=sampling.replace(seed=seed),
                live=live,
                is_guarded=is_guarded,
                has_budget=has_budget,
                keeps_codes=self.config.tts_model_type == "base",
            )

        return Stream(self.intake.parts(request, open_session), self.codec_config, sizes)
