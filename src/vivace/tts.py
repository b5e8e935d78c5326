"""The front door: load a checkpoint, speak, clone.

with TTS.load("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice") as tts:
    tts.speak("Hello.", voice="vivian").save("hello.wav")
"""

from __future__ import annotations

import logging
import secrets
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from vivace.audio.clip import Audio
from vivace.audio.files import AudioSource, read_audio
from vivace.backends import build_backend
from vivace.backends.base import Backend
from vivace.checkpoint import Checkpoint, find_folder
from vivace.device import pick_device, pick_dtype
from vivace.engine.generate import generate
from vivace.engine.intake import Intake
from vivace.errors import CheckpointError, ClosedError
from vivace.model.codec import Codec
from vivace.model.config import ModelType
from vivace.model.talker import Qwen3TTS
from vivace.prompt import AUTO, TextLayout
from vivace.speech import MAX_SEED, SamplingParams, Usage
from vivace.text.tokenizer import TextTokenizer
from vivace.voices.enroll import enroll
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
        backend: Backend,
    ) -> None:
        self.checkpoint = checkpoint
        self._intake = Intake(checkpoint.config, tokenizer)
        self._parts: tuple[Qwen3TTS, Codec, Backend] | None = (model, codec, backend)

    @classmethod
    def load(
        cls,
        name_or_folder: str | Path,
        *,
        device: str = "auto",
        dtype: str | torch.dtype = "auto",
        backend: str = "auto",
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        offline: bool = False,
        split_camel_case: bool = False,
    ) -> TTS:
        """Load a hub id or a local folder in the released layout.

        `auto` picks CUDA, then MPS, then the CPU; bfloat16 on CUDA, float32 elsewhere; and the
        fastest backend that can run. `split_camel_case` reads "YouTube" as "You" "Tube", as the
        official package does when it loads a local folder.
        """
        where = pick_device(device)
        precision = pick_dtype(dtype, where)
        folder = find_folder(
            name_or_folder, revision=revision, cache_dir=cache_dir, offline=offline
        )
        checkpoint = Checkpoint.open(folder)
        tokenizer = TextTokenizer.from_folder(folder, split_camel_case=split_camel_case)
        text_vocab_size = checkpoint.config.talker_config.text_vocab_size
        if tokenizer.vocab_size > text_vocab_size:
            raise CheckpointError(
                f"{folder}: the tokenizer has ids up to {tokenizer.vocab_size - 1} and the "
                f"model's text_vocab_size is {text_vocab_size}; one of them is another model's"
            )
        model = checkpoint.load_model(where, precision)
        codec = checkpoint.load_codec(where)
        tts = cls(checkpoint, tokenizer, model, codec, build_backend(backend, model, codec))
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
        return f"<TTS {name} on {self.device} in {dtype}, backend {self._parts[2].name}>"

    # -- what it does ------------------------------------------------------------------------

    def speak(
        self,
        text: str,
        *,
        voice: str | Voice | None = None,
        language: str = AUTO,
        instruct: str | None = None,
        text_layout: TextLayout | None = None,
        **sampling: Any,
    ) -> Audio:
        """Say `text` and return all of it.

        `voice` is a preset speaker's name or a cloned `Voice`; `language` is that of the text,
        whatever the voice's own, and `auto` lets the model hear it; `instruct` says how to speak or
        describes the voice to a voice_design checkpoint. Any field of `SamplingParams` can be
        given by name and replaces the checkpoint's default. `text_layout` None is the official
        choice: `streamed` for cloned voices, `whole` for the others.
        """
        began = time.perf_counter()
        _, _, backend = self._open_parts()
        params = self._settle_sampling(sampling)
        prompt, num_text_ids = self._intake.write_prompt(
            text, voice=voice, language=language, instruct=instruct, layout=text_layout
        )
        utterance = generate(backend, prompt, params)
        usage = Usage(
            text_tokens=num_text_ids,
            frames=len(utterance.codes),
            audio_s=len(utterance.samples) / self.sample_rate,
            wall_s=time.perf_counter() - began,
            seed=params.seed or 0,
        )
        log.info("spoke %.2f s in %.2f s, %s", usage.audio_s, usage.wall_s, utterance.finish_reason)
        return Audio(
            samples=utterance.samples,
            sample_rate=self.sample_rate,
            codes=utterance.codes,
            finish_reason=utterance.finish_reason,
            usage=usage,
        )

    def clone(
        self,
        audio: AudioSource,
        transcript: str | None = None,
        *,
        name: str = "cloned",
        language: str | None = None,
        licence: str | None = None,
    ) -> Voice:
        """A voice from a recording of 1 to 30 s: a path, bytes, a data URI or (array, rate).

        Alone, the voice is a speaker vector. With `transcript`, every word said in the recording,
        speech goes on from it in context, which is closer to the original.
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
        )

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

    def _open_parts(self) -> tuple[Qwen3TTS, Codec, Backend]:
        if self._parts is None:
            raise ClosedError("this TTS was closed; load it again to speak")
        return self._parts

    def _settle_sampling(self, changes: dict[str, Any]) -> SamplingParams:
        params = self.sampling.replace(**changes)
        return (
            params if params.seed is not None else params.replace(seed=secrets.randbelow(MAX_SEED))
        )
