"""Speech for sockets: a checked request without its text, and utterances spoken by it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from vivace.errors import EngineError, RunawayError
from vivace.serve.context import ServeContext
from vivace.serve.request import SpeechRequest
from vivace.serve.speech import Ending, choose_options, open_encoder

SendAudio = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Studio:
    """What all sockets share."""

    context: ServeContext

    async def choose(self, fields: dict[str, Any]) -> Speaker:
        """The speaker that the fields of a speech request ask for; errors as over HTTP."""
        request = SpeechRequest.parse({**fields, "input": "text"}, self.context.settings)
        recording = request.recording(self.context.settings)
        model = await self.context.models.get(
            request.model, voice=request.voice_name, model_type=request.model_type
        )
        request.check_task(model.card)
        encoder = open_encoder(self.context, model, request)  # whether it can be
        with self.context.models.in_use(model):
            options, _ = await choose_options(self.context.clones, model, request, recording)
        return Speaker(self, request, model.name, options, encoder.sample_rate)


@dataclass(frozen=True, slots=True)
class Speaker:
    """Speaks the utterances of a connection."""

    studio: Studio
    request: SpeechRequest
    model: str
    options: dict[str, Any]
    sample_rate: int  # of the bytes

    async def speak(
        self,
        text: AsyncIterable[str] | str,
        send: SendAudio,
        *,
        is_whole: bool = False,
        ending: Ending | None = None,
    ) -> Ending:
        """Hand bytes to `send` as they are made; an error if the speech did not end by itself.

        An `ending` that is given knows the words of the bytes by the time `send` gets them.
        """
        context = self.studio.context
        model = await context.models.get(self.model)
        encoder = open_encoder(context, model, self.request)
        ending, whole = ending or Ending(), []
        async with context.streams.open(model, text, **self.options) as chunks:
            async for chunk in chunks:
                ending.count(chunk)
                if is_whole:
                    whole.append(chunk.samples)
                elif len(chunk.samples) and (data := await encoder.encode(chunk.samples)):
                    await send(data)
        if not (ending.is_complete or self.request.is_pinned):
            raise RunawayError(f"the speech did not end by itself ({ending.reason})")
        if not ending.num_frames:
            raise EngineError("the speech has no audio")
        data = await (encoder.encode_whole(whole) if is_whole else encoder.finish())
        if data:
            await send(data)
        return ending
