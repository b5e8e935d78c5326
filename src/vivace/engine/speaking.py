"""A loaded checkpoint that speaks texts with options: streams, and whole texts in steps."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from vivace.audio.clip import Audio
from vivace.audio.files import read_audio
from vivace.device import use_threads
from vivace.engine.async_stream import AsyncStream, Bells
from vivace.engine.batch import Steps, check_item, read_batch, read_text
from vivace.engine.chunks import RAMP, TOGETHER, WHOLE, ChunkFrames
from vivace.engine.loaded import LoadedCheckpoint
from vivace.engine.options import StreamOptions, check_names
from vivace.engine.progress import show_batch, show_progress
from vivace.engine.stream import Stream, Wake
from vivace.errors import RequestError
from vivace.prompt import AUTO_LANGUAGE, TextLayout
from vivace.script.prompts import SERVED_BY
from vivace.script.request import Pieces, Request, as_pieces
from vivace.speech import LiveMode, OnUnsupported, language_name
from vivace.text.lexicon import Lexicon, LexiconSource
from vivace.verify import Verifier, check_recogniser
from vivace.voices.cache import EnrolmentCache
from vivace.voices.enroll import enroll_once
from vivace.voices.find import Unenrolled, VoiceSource, find_voice
from vivace.voices.library import VoiceLibrary
from vivace.voices.voice import Voice

log = logging.getLogger(__name__)

LONG_TEXT = 2_000  # characters that are not split and normalized in an event loop's thread


class SpeakingCheckpoint(LoadedCheckpoint):
    """Makes speech of texts and options; `TTS` is its public face."""

    lexicon: Lexicon | None  # how some words are read, in every text
    _bells: Bells
    _verifier: Verifier | None = None  # once `verify` is asked for

    def voice(self, voice: VoiceSource, transcript: str | None = None) -> str | Voice:
        """The voice that `speak` will use for this: what it takes as `voice`, looked up.

        A recording's path is enrolled once, with its `transcript` in context; a .safetensors file
        is loaded; other names are the library's. A preset stays its name. Because paths are
        opened, a server looks strangers' names up in `speakers` and `VoiceLibrary` instead.
        """
        library = VoiceLibrary()
        found = find_voice(voice, self.speakers, library)
        if isinstance(found, Unenrolled):
            self._writer.require("base", "clone a voice")
            model, codec, engine = self._open_parts()
            recording, cache = read_audio(found.audio), EnrolmentCache()
            with use_threads(engine.threads):
                return enroll_once(
                    model, codec, recording, name="cloned", transcript=transcript, cache=cache
                )
        if transcript is not None:
            raise RequestError("a transcript belongs to a recording, such as voice='me.wav'")
        if isinstance(found, str) and self.model_type == "base" and (names := library.names()):
            served_by = f"{SERVED_BY['custom_voice']}, or take one of yours: {', '.join(names)}"
            self._writer.require(
                "custom_voice", f"speak with the preset voice {found[:80]!r}", served_by
            )
        return found

    def _settle_lexicons(self, lexicon: LexiconSource | None) -> tuple[Lexicon, ...]:
        """The request's own, then that of `load`."""
        own = None if lexicon is None else Lexicon.of(lexicon)
        if own is not None:
            own.check_languages(self.languages)
        return tuple(one for one in (own, self.lexicon) if one is not None)

    def _open(
        self,
        text: object,
        *,
        voice: VoiceSource | None = None,
        language: str = AUTO_LANGUAGE,
        instruct: str | None = None,
        text_layout: TextLayout | None = None,
        live: LiveMode | None = None,
        split: bool = True,
        clean: bool = False,
        keep_emoji: bool = False,
        normalize: bool | None = None,
        lexicon: LexiconSource | None = None,
        on_unsupported: OnUnsupported = "skip",
        guard: bool = True,
        trim: bool = False,
        speed: float = 1.0,
        timings: bool = False,
        chunk_frames: ChunkFrames = RAMP,
        wake: Wake | None = None,
        **sampling: Any,
    ) -> Stream:
        check_names(sampling, StreamOptions)
        return self.open(
            Request(
                text=text if isinstance(text, str) else as_pieces(text),
                voice=self._writer.default_voice if voice is None else self.voice(voice),
                language=language_name(language) if isinstance(language, str) else language,
                instruct=self._writer.check_follows(instruct),
                layout=text_layout,
                live=live,
                split=split,
                breaks=True,
                clean=clean,
                keep_emoji=keep_emoji,
                normalize=normalize,
                lexicons=self._settle_lexicons(lexicon),
                on_unsupported=on_unsupported,
                trim=trim,
            ),
            chunk_frames=chunk_frames,
            guard=guard,
            check_words=guard,
            speed=speed,
            timings=timings,
            wake=wake,
            **sampling,
        )

    def _is_slow(self, text: str | Sequence[str], options: Mapping[str, Any]) -> bool:
        """Whether opening it would block an event loop: files to read, or much text to split."""
        voice = options.get("voice")
        is_at_hand = voice is None or isinstance(voice, Voice) or voice in self.speakers
        is_at_hand &= isinstance(options.get("lexicon"), Lexicon | None)
        texts = [text] if isinstance(text, str) else text
        size = sum(len(one) for one in texts if isinstance(one, str))
        return not is_at_hand or size > LONG_TEXT

    def _read_one(
        self,
        text: str,
        wake: Wake,
        *,
        progress: bool = False,
        trim: bool = True,
        verify: bool = False,
        **options: Any,
    ) -> Steps[Audio]:
        if verify:
            self._check_verify(options)

        def open_stream() -> Stream:
            return self._open(text, wake=wake, trim=trim, chunk_frames=WHOLE, **options)

        audio = yield from read_text(open_stream, options, show_progress if progress else None)
        log.info("spoke %s, %s", audio.usage, audio.finish_reason)
        return (yield from self._verify(text, audio, wake)) if verify else audio

    def _check_verify(self, options: Mapping[str, Any]) -> None:
        """Raise RequestError where speech cannot be verified, before any is made."""
        check_recogniser()
        if not self._writer.is_english(options.get("language", AUTO_LANGUAGE)):
            raise RequestError("verify reads English; name the language with language='english'")

    def _verify(self, text: str, audio: Audio, wake: Wake) -> Steps[Audio]:
        self._verifier = self._verifier or Verifier()
        future = self._verifier.start(text, audio.samples, audio.sample_rate, wake)
        while not future.done():
            yield False
        return dataclasses.replace(audio, **future.result()._asdict())

    def _read_all(
        self,
        texts: Sequence[str],
        wake: Wake,
        *,
        progress: bool = False,
        trim: bool = True,
        verify: bool = False,
        **options: Any,
    ) -> Steps[list[Audio]]:
        if verify:
            self._check_verify(options)
        if options.get("voice") is not None:
            options["voice"] = self.voice(options["voice"])  # a recording is enrolled once
        options["lexicon"] = read_lexicon(options.get("lexicon"))

        def open_text(text: str, wake: Wake) -> Stream:
            return self._open(text, wake=wake, trim=trim, chunk_frames=self._chunks, **options)

        openers = [partial(open_text, check_item(text)) for text in texts]
        report = show_batch if progress else None
        audios = yield from read_batch(openers, options, self.engine.num_together, wake, report)
        if not verify:
            return audios
        verified = []
        for text, audio in zip(texts, audios, strict=True):
            verified.append((yield from self._verify(text, audio, wake)))
        return verified

    def _speak_live(
        self, text: object, *, progress: bool = False, trim: bool = True, **options: Any
    ) -> Audio:
        """A live text can be read only once, so there is no second attempt after a runaway."""
        stream = self._open(text, trim=trim, chunk_frames=WHOLE, **options)
        audio = stream.collect(show_progress if progress else None)
        log.info("spoke %s, %s", audio.usage, audio.finish_reason)
        return audio

    async def _aspeak_live(
        self, text: Pieces, *, progress: bool = False, trim: bool = True, **options: Any
    ) -> Audio:
        stream = AsyncStream(
            lambda wake: self._open(text, wake=wake, trim=trim, chunk_frames=WHOLE, **options),
            text,
            self._bells,
            is_slow=self._is_slow("", options),
        )
        audio = await stream.collect(show_progress if progress else None)
        log.info("spoke %s, %s", audio.usage, audio.finish_reason)
        return audio

    @property
    def _chunks(self) -> ChunkFrames:
        """How a text that is not streamed is made: in one chunk, or in turns with others."""
        return TOGETHER if self.engine.num_together > 1 else WHOLE


def read_lexicon(lexicon: LexiconSource | None) -> Lexicon | None:
    """Read a lexicon's file once for many texts."""
    return None if lexicon is None else Lexicon.of(lexicon)
