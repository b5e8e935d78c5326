"""Computes, with a loaded checkpoint, the values that golden files record.

Recording and checking call the same functions. The functions run on the engine's thread, where the
backend belongs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from vivace.audio.files import Recording
from vivace.backends.base import Backend, Frames
from vivace.backends.frame_maker import bans
from vivace.conformance.golden import (
    NUM_END_IDS,
    NUM_ROLE_IDS,
    Floats,
    GoldenEncoders,
    GoldenRequest,
    Ints,
    encoder_samples,
    probe_inputs,
)
from vivace.device.threads import use_threads
from vivace.engine.streams.chunks import WHOLE
from vivace.errors import NumericError
from vivace.model.cache import KeyValueCache
from vivace.model.conv import CausalState
from vivace.model.precision import full_precision
from vivace.model.talker import Qwen3TTS
from vivace.options import SpeechOptions
from vivace.prompt import Prompt, SpokenReference, build_prompt
from vivace.sampling import penalise
from vivace.script.request import Request
from vivace.speech import MIN_FRAMES, SamplingParams
from vivace.teacher_forcing import Batch, Example, collate, first_logits, residual_logits
from vivace.teacher_forcing import talker_states as batch_states
from vivace.text.tokenizer import TextTokenizer
from vivace.tts import TTS
from vivace.voices.enroll import reference_codes, speaker_vector
from vivace.voices.voice import Voice

T = TypeVar("T")

GREEDY = SamplingParams(temperature=0.0, repetition_penalty=1.0, seed=0)
ENCODER_RATE = 24_000  # of the encoders' input, in Hz
FRAMES_PER_PASS = 64  # of the predictor, to bound the memory of its logits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spoken:
    """The speech of a greedy request."""

    codes: Ints
    has_end: bool
    frame_ms: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choices:
    """The greedy choice for every code, each after the recorded codes before it."""

    codes: Ints  # [frames, codebooks]
    plain_first: Ints  # [frames], codebook 0 without the repetition penalty
    is_end: bool  # whether the model ends the speech after the last frame
    margin: float  # smallest distance of the two highest scores
    scores: Floats  # [codebooks], the highest logit, mean of all frames


def on_engine(tts: TTS, function: Callable[[], T]) -> T:
    """Run on the engine's thread, with its number of CPU threads and without gradients."""

    def run() -> T:
        with use_threads(tts.engine.threads), torch.inference_mode():
            return function()

    return tts.engine.call(run)


# -- text --------------------------------------------------------------------------------------


def chat_ids(tokenizer: TextTokenizer, text: str, *, has_reply: bool = True) -> Ints:
    """The ids of the official chat string; without a reply, as for the text of a reference."""
    reply = "<|im_start|>assistant\n" if has_reply else ""
    chat = f"<|im_start|>assistant\n{text}<|im_end|>\n{reply}"
    return np.array(tokenizer.encode_marked(chat), np.int64)


def instruct_ids(tokenizer: TextTokenizer, instruct: str) -> Ints:
    """The ids of the user turn with an instruction."""
    chat = f"<|im_start|>user\n{instruct}<|im_end|>\n"
    return np.array(tokenizer.encode_marked(chat), np.int64)


# -- parts of the model ------------------------------------------------------------------------


def text_vectors(tts: TTS, ids: Ints) -> Floats:
    model = tts.loaded.runtime.model

    def compute() -> Floats:
        return _floats(model.talker.text_vectors(torch.from_numpy(ids).to(model.device)))

    return on_engine(tts, compute)


def talker_states(tts: TTS) -> tuple[Floats, Floats]:
    """States of the probe's prompt rows [rows, hidden] and of one further row [hidden]."""
    model = tts.loaded.runtime.model
    talker = model.talker

    def compute() -> tuple[Floats, Floats]:
        width = talker.config.hidden_size
        rows, step = (
            torch.from_numpy(each)[None].to(model.device, model.dtype)
            for each in probe_inputs(width)
        )
        cache = KeyValueCache(talker.config.num_hidden_layers)
        num_rows = rows.shape[1]
        states = talker(rows, talker.rope.span(0, num_rows, rows), cache)
        after = talker(step, talker.rope.span(num_rows, 1, step), cache)
        return _floats(states[0]), _floats(after[0, 0])

    return on_engine(tts, compute)


def after_transformer(tts: TTS, codes: Ints) -> Floats:
    """Output of the codec's transformer for all frames: [frames, latent_dim]."""
    codec = tts.loaded.runtime.codec

    def compute() -> Floats:
        state = CausalState()
        state.rewind()
        batch = torch.from_numpy(codes).to(codec.device)[None]
        latents = codec.decoder.quantizer(batch.transpose(1, 2))
        with full_precision():
            return _floats(codec.decoder.transform_latents(latents, state)[0])

    return on_engine(tts, compute)


def encoded_noise(tts: TTS) -> GoldenEncoders:
    """Outputs of the speaker encoder and of the codec's encoder."""
    runtime = tts.loaded.runtime
    recording = Recording(samples=encoder_samples(), sample_rate=ENCODER_RATE, sha256="")

    def compute() -> GoldenEncoders:
        return GoldenEncoders(
            speaker=speaker_vector(runtime.model, recording),
            codes=reference_codes(runtime.codec, recording),
        )

    return on_engine(tts, compute)


# -- the backend -------------------------------------------------------------------------------


def samples(tts: TTS, codes: Ints) -> Floats:
    """The backend's audio of these codes."""
    config, backend = tts.loaded.runtime.model.config, tts.engine.backend
    text_ids = [config.im_end_token_id]
    prompt = build_prompt(config, text_ids, role_ids=text_ids * NUM_ROLE_IDS, layout="whole")
    frames = Frames(codes[None], (len(codes),), ("running",))

    def compute() -> Floats:
        slot = _admit(backend, prompt)
        try:
            return backend.start_render([slot], frames)().samples[0]
        finally:
            backend.release(slot)

    return on_engine(tts, compute)


def next_frames(tts: TTS, request: GoldenRequest, frames: Sequence[int]) -> Ints:
    """Frames of the backend, each made after the recorded frames before it: [N, codebooks].

    A prompt has no history for the repetition penalty, so these frames are made without it. A slot
    that ends or fails has a frame of -1.
    """
    backend = tts.engine.backend
    prompt = request_prompt(tts, request)

    def compute(frame: int) -> Ints:
        past = prompt
        if frame:
            past = prompt.continued(request.codes[:frame], (), is_complete=True)
        slot = _admit(backend, dataclasses.replace(past, reference=None))
        try:
            made = backend.start_step([slot], 1)().of(0)
        finally:
            backend.release(slot)
        return made[0] if len(made) else np.full(request.codes.shape[1], -1, np.int64)

    return on_engine(tts, lambda: np.stack([compute(frame) for frame in frames]))


def _admit(backend: Backend, prompt: Prompt) -> int:
    [slot] = backend.admit_many([(prompt, GREEDY)])
    if isinstance(slot, Exception):
        raise slot
    return slot


# -- requests ----------------------------------------------------------------------------------


def speak(tts: TTS, request: GoldenRequest) -> Spoken:
    """The speech of a request, from its text, through the engine."""
    voice: str | Voice | None = request.preset
    if request.speaker is not None:
        voice = Voice(
            name="golden",
            speaker=request.speaker,
            ref_codes=request.ref_codes,
            ref_text=request.ref_text,
        )
    options = SpeechOptions(
        language=request.language,
        instruct=request.instruct,
        text_layout=request.layout,
        normalize=False,
        split=False,
        guard=False,
        trim=False,
        temperature=0.0,
        predictor_temperature=0.0,
        repetition_penalty=request.repetition_penalty,
        min_frames=MIN_FRAMES,
        max_frames=request.max_frames,
        seed=0,
    )
    wanted = Request(text=request.text, voice=voice, options=options, verbatim=True)
    audio = tts.loaded.open(wanted, chunk_frames=WHOLE).collect()
    wall_s = 0.0 if audio.usage is None else audio.usage.wall_s
    return Spoken(
        codes=audio.codes,
        has_end=audio.finish_reason == "stop",
        frame_ms=1000.0 * wall_s / max(1, len(audio.codes)),
    )


def request_prompt(tts: TTS, request: GoldenRequest) -> Prompt:
    """The prompt of a request from its recorded ids. A wrong tokenizer does not change it."""
    text_ids, reference = request.text_ids.tolist(), None
    if request.ref_ids is not None and request.ref_codes is not None:
        ref_ids = request.ref_ids.tolist()[NUM_ROLE_IDS:-NUM_END_IDS]
        reference = SpokenReference(text_ids=ref_ids, codes=request.ref_codes)
    return build_prompt(
        tts.checkpoint.config,
        text_ids[NUM_ROLE_IDS : -NUM_END_IDS - NUM_ROLE_IDS],
        role_ids=text_ids[:NUM_ROLE_IDS],
        layout=request.layout,
        language=request.language,
        preset=request.preset,
        speaker=request.speaker,
        reference=reference,
        instruct_ids=() if request.instruct_ids is None else request.instruct_ids.tolist(),
    )


def choose_codes(tts: TTS, request: GoldenRequest) -> Choices:
    """The model's choices along the recorded codes, computed in one pass."""
    model = tts.loaded.runtime.model
    example = Example(prompt=request_prompt(tts, request), codes=request.codes)

    def compute() -> Choices:
        batch = collate([example], model.device)
        hidden = batch_states(model.talker, batch)
        logits = first_logits(model.talker, hidden, batch)
        plain, scores = _first_scores(model, logits, batch, request.repetition_penalty)
        residual = [
            torch.stack(residual_logits(model.talker, hidden[rows], frames), dim=1)
            for rows, frames in zip(
                batch.before.split(FRAMES_PER_PASS),
                batch.frames.split(FRAMES_PER_PASS),
                strict=True,
            )
        ]
        others = torch.cat(residual)  # [frames, codebooks - 1, codes]
        if not (torch.isfinite(logits).all() and torch.isfinite(others).all()):
            raise NumericError("the model's logits are not finite")
        first = scores.argmax(-1)
        codes = torch.cat((first[:-1, None], others.argmax(-1)), dim=1)
        recorded = scores if request.has_end else scores[:-1]
        return Choices(
            codes=codes.cpu().numpy(),
            plain_first=plain[:-1].argmax(-1).cpu().numpy(),
            is_end=int(first[-1]) == model.config.talker_config.codec_eos_token_id,
            margin=min(_margin(recorded), _margin(others)),
            scores=_highest(logits[:-1], others),
        )

    return on_engine(tts, compute)


def _first_scores(
    model: Qwen3TTS, logits: Tensor, batch: Batch, repetition_penalty: float
) -> tuple[Tensor, Tensor]:
    """Scores of codebook 0 without and with the repetition penalty: [frames + 1, codes]."""
    late, early = bans(model)
    num_rows = len(logits)
    is_early = torch.arange(num_rows, device=logits.device) < MIN_FRAMES
    is_banned = torch.where(is_early[:, None], early, late)
    seen = torch.zeros_like(logits, dtype=torch.bool)
    for row, code in enumerate(batch.frames[:, 0].tolist(), start=1):
        seen[row:, code] = True
    penalty = torch.full((num_rows, 1), repetition_penalty, device=logits.device)
    scores = penalise(logits, seen, penalty)
    return logits.masked_fill(is_banned, -torch.inf), scores.masked_fill(is_banned, -torch.inf)


def _highest(first: Tensor, others: Tensor) -> Floats:
    """The highest logit of each codebook, mean of all frames."""
    return _floats(torch.cat((first.amax(-1).mean(0)[None], others.amax(-1).mean(0))))


def _margin(scores: Tensor) -> float:
    best, second = scores.topk(2, dim=-1).values.unbind(-1)
    return float((best - second).min())


def _floats(values: Tensor) -> Floats:
    return values.float().cpu().numpy()
