"""The front door: load a checkpoint, speak, clone.

with TTS.load("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice") as tts:
    tts.speak("Hello.", voice="vivian").save("hello.wav")
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from vivace.audio.clip import Audio, AudioChunk
from vivace.audio.files import AudioSource, read_audio
from vivace.backends import Room, build_backend
from vivace.checkpoint import Checkpoint, find_folder
from vivace.device import pick_device, pick_dtype, pick_threads, use_threads
from vivace.engine.async_stream import read_async
from vivace.engine.attempts import attempts
from vivace.engine.desk import Desk
from vivace.engine.engine import Engine
from vivace.engine.intake import SERVED_BY, Intake, Request, as_pieces
from vivace.engine.progress import show_progress
from vivace.engine.scheduler import EngineLimits, Profile
from vivace.engine.session import RAMP, WHOLE, chunk_sizes
from vivace.engine.stream import Stream
from vivace.errors import ClosedError, RequestError
from vivace.model.codec import Codec
from vivace.model.config import ModelType
from vivace.model.talker import Qwen3TTS
from vivace.prompt import AUTO, TextLayout
from vivace.speech import MAX_SEED, SamplingParams
from vivace.text.tokenizer import TextTokenizer
from vivace.voices.cache import EnrolmentCache
from vivace.voices.enroll import enroll, enroll_once
from vivace.voices.find import Unenrolled, VoiceSource, find_voice
from vivace.voices.library import VoiceLibrary
from vivace.voices.voice import Voice

log = logging.getLogger(__name__)


class TTS:
    """A loaded checkpoint that speaks."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: TextTokenizer,
        model: Qwen3TTS,
        codec: Codec,
        engine: Engine,
    ) -> None:
        self.checkpoint = checkpoint
        self._intake = Intake(checkpoint.config, tokenizer)
        desk = Desk(self._intake, engine, checkpoint.codec_config)
        self._parts: tuple[Qwen3TTS, Codec, Desk] | None = (model, codec, desk)

    @classmethod
    def load(
        cls,
        name_or_folder: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str | torch.dtype = "auto",
        backend: str = "auto",
        threads: int | None = None,
        max_streams: int | None = None,
        max_frames: int | None = None,
        max_queue: int = 256,
        profile: Profile = "balanced",
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        offline: bool = False,
        split_camel_case: bool = False,
    ) -> TTS:
        """Load a hub id, a local folder in the released layout, or the voice in the package.

        Without a name it is the embedded voice: small, English, offline, quick on a CPU.

        `auto` picks CUDA, then MPS, then the CPU, and the CPU for a small model; bfloat16 on CUDA,
        float32 elsewhere; and the first backend that can run. `threads` is how many of the CPU's an
        operation may use, while this TTS works and nowhere else; None gives a small model one,
        which a busy machine slows least, and leaves PyTorch's own number to the others.

        `max_streams` speak at once (None: 8 on an NVIDIA GPU, many elsewhere), and `max_queue`
        wait for a place. A GPU's memory is laid out for that many utterances of `max_frames` (None:
        2,048 frames, 164 s) when the model is loaded. `profile` is `latency`, `balanced` or
        `throughput`: how many frames are made in a turn in which nobody waits for first audio.

        `split_camel_case` reads "YouTube" as "You" "Tube", as the official package does when it
        loads a local folder.
        """
        limits = EngineLimits(max_streams, max_queue, profile=profile)
        room = Room(max_streams, max_frames)
        pick_dtype(dtype, pick_device(device))  # what cannot be is refused before a download
        folder = find_folder(
            name_or_folder, revision=revision, cache_dir=cache_dir, offline=offline
        )
        checkpoint = Checkpoint.open(folder)
        tokenizer = checkpoint.load_tokenizer(split_camel_case=split_camel_case)
        where = pick_device(device, checkpoint.num_bytes if backend == "auto" else None)
        precision = pick_dtype(dtype, where)
        threads = pick_threads(threads, where, checkpoint.num_bytes)
        with use_threads(threads):
            model = checkpoint.load_model(where, precision)
            codec = checkpoint.load_codec(where)
            runs = build_backend(backend, model, codec, room)
        tts = cls(checkpoint, tokenizer, model, codec, Engine(runs, limits, threads=threads))
        log.info("loaded %r", tts)
        return tts

    # -- what it is --------------------------------------------------------------------------

    @property
    def model_type(self) -> ModelType:
        return self.checkpoint.config.tts_model_type

    @property
    def speakers(self) -> list[str]:
        """The preset voices; empty unless the checkpoint is of type custom_voice."""
        return sorted(self.checkpoint.config.talker_config.spk_id)

    @property
    def languages(self) -> list[str]:
        """What `language` may be: `auto`, the languages, and dialects where there are any."""
        return [AUTO, *sorted(self.checkpoint.config.talker_config.codec_language_id)]

    @property
    def sample_rate(self) -> int:
        return self.checkpoint.codec_config.output_sample_rate

    @property
    def sampling(self) -> SamplingParams:
        """The checkpoint's own sampling defaults."""
        return self.checkpoint.sampling

    @property
    def engine(self) -> Engine:
        """What runs the backend: how many streams run and wait, and where time was spent."""
        return self._open_parts()[2].engine

    @property
    def device(self) -> torch.device:
        return self._open_parts()[0].device

    @property
    def dtype(self) -> torch.dtype:
        return self._open_parts()[0].dtype

    def __repr__(self) -> str:
        name = f"{self.model_type} {self.checkpoint.folder.name}"
        if self._parts is None:
            return f"<TTS {name}, closed>"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"<TTS {name} on {self.device} in {dtype}, backend {self.engine.backend.name}>"

    # -- what it does ------------------------------------------------------------------------

    def speak(
        self,
        text: str | Iterable[str],
        *,
        voice: VoiceSource | None = None,
        language: str = AUTO,
        instruct: str | None = None,
        text_layout: TextLayout | None = None,
        split: bool = True,
        clean: bool = False,
        keep_emoji: bool = False,
        guard: bool = True,
        trim: bool = True,
        progress: bool = False,
        **sampling: Any,
    ) -> Audio:
        """Say `text`, of any length, and return all of it.

        `voice` is a preset speaker's name, a cloned `Voice`, the name of one in the library, or the
        path of a voice file or of a recording to clone; `language` is that of the text,
        whatever the voice's own, and `auto` lets the model hear it; `instruct` says how to speak or
        describes the voice to a voice_design checkpoint. Any field of `SamplingParams` can be
        given by name and replaces the checkpoint's default. `text_layout` None is the official
        choice: `streamed` for cloned voices, `whole` for the others.

        A text of more than 300 characters is spoken in utterances of a few sentences, unless
        `split` is false; `[pause 0.5s]` is a pause; `clean` takes markdown and links out. Emoji are
        not spoken unless `keep_emoji` is true.

        `guard` stops speech that does not end by itself; without a `seed` or `max_frames` of yours
        it is tried once more, and then a RunawayError. `trim` takes off silence at the start, a
        stall at the end, and the end of a cloned voice's recording where it is said again.
        `progress` shows a bar on stderr.
        """
        open_stream = partial(
            self.stream,
            text,
            voice=voice,
            language=language,
            instruct=instruct,
            text_layout=text_layout,
            split=split,
            clean=clean,
            keep_emoji=keep_emoji,
            guard=guard,
            trim=trim,
            chunk_frames=WHOLE,
            **sampling,
        )
        if not isinstance(text, str):  # a live text is gone when it was read
            return open_stream().collect(show_progress if progress else None)
        for stream in attempts(open_stream, sampling):
            audio = stream.collect(show_progress if progress else None)
        log.info("spoke %s, %s", audio.usage, audio.finish_reason)
        return audio

    def stream(
        self,
        text: str | Iterable[str],
        *,
        voice: VoiceSource | None = None,
        language: str = AUTO,
        instruct: str | None = None,
        text_layout: TextLayout | None = None,
        split: bool = True,
        clean: bool = False,
        keep_emoji: bool = False,
        guard: bool = True,
        trim: bool = False,
        chunk_frames: int | Sequence[int] | Iterator[int] = RAMP,
        **sampling: Any,
    ) -> Stream:
        """Say `text` and hand out audio while it is made; the same samples as `speak` without trim.

        `text` may be an iterator of pieces, such as an LLM's tokens: speech begins with the first
        word and waits when the text runs dry. `chunk_frames` is how many frames of 80 ms each chunk
        has: one number, a ramp whose last number repeats, or an endless iterator.
        """
        _, _, desk = self._open_parts()
        request = Request(
            text=text if isinstance(text, str) else as_pieces(text),
            voice=None if voice is None else self.voice(voice),
            language=language,
            instruct=instruct,
            layout=text_layout,
            split=split,
            clean=clean,
            keep_emoji=keep_emoji,
            trim=trim,
        )
        return desk.open(
            request,
            self._settle_sampling(sampling),
            chunk_sizes(chunk_frames),
            is_guarded=guard,
            has_budget=guard and "max_frames" not in sampling,
        )

    def astream(
        self, text: str | Iterable[str] | AsyncIterable[str], **options: Any
    ) -> AsyncIterator[AudioChunk]:
        """`stream` for asyncio: work runs in threads; `text` may be an async iterator too."""
        return read_async(partial(self.stream, **options), text)

    def clone(
        self,
        audio: AudioSource,
        transcript: str | None = None,
        *,
        name: str = "cloned",
        language: str | None = None,
        licence: str | None = None,
        append_silence: bool = True,
    ) -> Voice:
        """A voice from a recording of 1 to 30 s: a path, bytes, a data URI or (array, rate).

        Alone, the voice is a speaker vector. With `transcript`, every word said in the recording,
        speech goes on from it in context, which is closer to the original; half a second of
        silence is appended to it first, so that its last sound does not run on into the speech
        (`append_silence=False` is the official behaviour).
        """
        self._intake.require("base", "clone a voice")
        model, codec, _ = self._open_parts()
        return enroll(
            model,
            codec,
            read_audio(audio),
            name=name,
            transcript=transcript,
            language=language,
            licence=licence,
            append_silence=append_silence,
        )

    def voice(self, voice: VoiceSource, transcript: str | None = None) -> str | Voice:
        """The voice that `speak` will use for this: what it takes as `voice`, looked up.

        A recording's path is enrolled once, with its `transcript` in context; a .safetensors file
        is loaded; other names are the library's. A preset stays its name. Because paths are
        opened, a server looks strangers' names up in `speakers` and `VoiceLibrary` instead.
        """
        library = VoiceLibrary()
        found = find_voice(voice, self.speakers, library)
        if isinstance(found, Unenrolled):
            self._intake.require("base", "clone a voice")
            model, codec, _ = self._open_parts()
            recording, cache = read_audio(found.audio), EnrolmentCache()
            return enroll_once(
                model, codec, recording, name="cloned", transcript=transcript, cache=cache
            )
        if transcript is not None:
            raise RequestError("a transcript belongs to a recording, such as voice='me.wav'")
        if isinstance(found, str) and self.model_type == "base" and (names := library.names()):
            served_by = f"{SERVED_BY['custom_voice']}, or take one of yours: {', '.join(names)}"
            self._intake.require(
                "custom_voice", f"speak with the preset voice {found[:80]!r}", served_by
            )
        return found

    def warmup(self) -> None:
        """Prepare what the first request would otherwise wait for, such as CUDA graphs."""
        self.engine.backend.warmup()

    def close(self) -> None:
        """Let go of the weights; speaking afterwards is a ClosedError."""
        self._parts = None

    def __enter__(self) -> TTS:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open_parts(self) -> tuple[Qwen3TTS, Codec, Desk]:
        if self._parts is None:
            raise ClosedError("this TTS was closed; load it again to speak")
        return self._parts

    def _settle_sampling(self, changes: Mapping[str, Any]) -> SamplingParams:
        params = self.sampling.replace(**changes)
        return (
            params if params.seed is not None else params.replace(seed=secrets.randbelow(MAX_SEED))
        )
