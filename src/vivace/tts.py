"""The front door: load a checkpoint, speak, clone.

with TTS.load("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice") as tts:
    tts.speak("Hello.", voice="vivian").save("hello.wav")
"""

from __future__ import annotations

import logging
import secrets
import time
import unicodedata
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
from vivace.errors import (
    CheckpointError,
    ClosedError,
    RequestError,
    TextTooLongError,
    UnsupportedRequestError,
)
from vivace.model.codec import Codec
from vivace.model.config import ModelType
from vivace.model.talker import Qwen3TTS
from vivace.prompt import AUTO, Prompt, SpokenReference, TextLayout, build_prompt
from vivace.speech import MAX_SEED, SamplingParams, Usage
from vivace.text.tokenizer import TextTokenizer
from vivace.voices.enroll import enroll
from vivace.voices.voice import Voice

log = logging.getLogger(__name__)

MAX_TEXT_CHARS = 4096
MAX_INSTRUCT_CHARS = 4096
TEXT_LAYOUTS = ("whole", "streamed")
UNSEEN = {"Zs", "Zl", "Zp", "Cc", "Cf"}  # Unicode categories of what leaves no mark on paper

SERVED_BY = {
    "base": "Qwen/Qwen3-TTS-12Hz-0.6B-Base",
    "custom_voice": "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
    "instruct": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "voice_design": "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
}
BASE_OF_WIDTH = {2048: "Qwen/Qwen3-TTS-12Hz-1.7B-Base"}  # for cloned voices of that width


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
        self._tokenizer = tokenizer
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
        prompt, num_text_ids = self._build_prompt(text, voice, language, instruct, text_layout)
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
        self._require("base", "clone a voice")
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

    # -- from words to a prompt --------------------------------------------------------------

    def _open_parts(self) -> tuple[Qwen3TTS, Codec, Backend]:
        if self._parts is None:
            raise ClosedError("this TTS was closed; load it again to speak")
        return self._parts

    def _settle_sampling(self, changes: dict[str, Any]) -> SamplingParams:
        params = self.sampling.replace(**changes)
        return (
            params if params.seed is not None else params.replace(seed=secrets.randbelow(MAX_SEED))
        )

    def _build_prompt(
        self,
        text: str,
        voice: str | Voice | None,
        language: str,
        instruct: str | None,
        layout: TextLayout | None,
    ) -> tuple[Prompt, int]:
        """The prompt, and how many ids the text has."""
        _check_text("text", text)
        if len(text) > MAX_TEXT_CHARS:
            raise TextTooLongError(len(text), MAX_TEXT_CHARS, "characters")
        if not isinstance(language, str):
            raise RequestError(f"language must be a string, not {type(language).__name__}")
        if layout is not None and layout not in TEXT_LAYOUTS:
            raise RequestError(f"text_layout must be one of {TEXT_LAYOUTS}, not {layout!r}")
        self._check_instruct(instruct)
        preset, cloned = self._settle_voice(voice)
        text_ids = self._tokenizer.encode(text)
        prompt = build_prompt(
            self.checkpoint.config,
            text_ids,
            role_ids=self._tokenizer.role_ids("assistant"),
            layout=layout or ("streamed" if self.model_type == "base" else "whole"),
            language=language,
            preset=preset,
            speaker=cloned.speaker if cloned else None,
            reference=self._reference(cloned),
            instruct_ids=self._instruct_ids(instruct),
        )
        limit = self.checkpoint.config.talker_config.max_position_embeddings - 1
        if len(prompt) > limit:
            raise TextTooLongError(len(prompt), limit, "tokens, with its voice and instruct,")
        return prompt, len(text_ids)

    def _settle_voice(self, voice: str | Voice | None) -> tuple[str | None, Voice | None]:
        """A preset's name or a cloned voice, as the checkpoint's type allows."""
        if isinstance(voice, Voice):
            served_by = BASE_OF_WIDTH.get(voice.width, SERVED_BY["base"])
            self._require("base", f"speak with the cloned voice {voice.name!r}", served_by)
            self._check_voice(voice)
            return None, voice
        if isinstance(voice, str):
            self._require("custom_voice", f"speak with the preset voice {voice!r}")
            return voice, None
        if voice is not None:
            kind = type(voice).__name__
            raise RequestError(f"voice must be a preset's name or a Voice, not {kind}")
        if self.model_type == "base":
            raise RequestError(
                "a base checkpoint speaks with a cloned voice: voice=tts.clone('me.wav')"
            )
        if self.model_type == "voice_design":
            return None, None  # instruct describes it
        return next(iter(self.checkpoint.config.talker_config.spk_id), None), None

    def _check_voice(self, voice: Voice) -> None:
        config = self.checkpoint.config.talker_config
        voice.check_width(config.hidden_size)
        voice.check_codes(config.num_code_groups, config.code_predictor_config.vocab_size)

    def _check_instruct(self, instruct: str | None) -> None:
        if instruct is None:
            if self.model_type == "voice_design":
                raise RequestError("a voice_design checkpoint needs instruct, the voice described")
            return
        _check_text("instruct", instruct)
        if len(instruct) > MAX_INSTRUCT_CHARS:
            raise RequestError(
                f"instruct has {len(instruct):,} characters and the limit is "
                f"{MAX_INSTRUCT_CHARS:,}; shorten it"
            )
        if not self.checkpoint.config.honours_instruct:
            size = self.checkpoint.config.tts_model_size
            raise UnsupportedRequestError(
                f"this {self.model_type} checkpoint (size {size}) was not trained to follow "
                f"instruct; load {SERVED_BY['instruct']}"
            )

    def _instruct_ids(self, instruct: str | None) -> list[int]:
        if instruct is None:
            return []
        tokenizer = self._tokenizer
        end = [self.checkpoint.config.im_end_token_id, *tokenizer.encode("\n")]
        return [*tokenizer.role_ids("user"), *tokenizer.encode(instruct), *end]

    def _reference(self, voice: Voice | None) -> SpokenReference | None:
        if voice is None or voice.ref_codes is None or voice.ref_text is None:
            return None
        return SpokenReference(
            text_ids=self._tokenizer.encode(voice.ref_text), codes=voice.ref_codes
        )

    def _require(self, model_type: str, what: str, served_by: str | None = None) -> None:
        if self.model_type != model_type:
            served_by = served_by or SERVED_BY[model_type]
            raise UnsupportedRequestError(
                f"a {self.model_type} checkpoint cannot {what}; load {served_by}"
            )


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise RequestError(f"{what} must be a string, not {type(text).__name__}")
    if all(unicodedata.category(letter) in UNSEEN for letter in text):
        raise RequestError(f"{what} is empty or blank; there is nothing to read in it")
