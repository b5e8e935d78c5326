"""Enrolment: converts a recording to a Voice, with a transcript also for in-context cloning."""

from __future__ import annotations

import hashlib
from datetime import date

import numpy as np
import torch
from numpy.typing import NDArray

from vivace.audio.files import Recording, check_reference
from vivace.audio.resample import resample
from vivace.errors import RequestError, UnsupportedRequestError
from vivace.model.codec import Codec
from vivace.model.mel import MelConfig, log_mel
from vivace.model.talker import Qwen3TTS
from vivace.voices.cache import EnrolmentCache, EnrolmentKey
from vivace.voices.voice import Voice

SILENCE_S = 0.5  # appended, so that generated speech does not continue the last word


@torch.inference_mode()
def enroll(
    model: Qwen3TTS,
    codec: Codec,
    recording: Recording,
    *,
    name: str,
    transcript: str | None = None,
    language: str | None = None,
    licence: str | None = None,
    consent: str | None = None,
    append_silence: bool = True,
) -> Voice:
    """Create a voice from one recording. `transcript` must contain every word of it.

    `append_silence` appends half a second of silence before the recording is encoded. The speaker
    vector is computed without it.
    """
    check_reference(recording)
    if transcript is not None and not isinstance(transcript, str):
        raise RequestError(f"transcript must be a string, not {type(transcript).__name__}")
    if transcript is not None and not transcript.strip():
        raise RequestError("the transcript is blank; leave it out to clone by speaker vector alone")
    speaker, codes = speaker_vector(model, recording), None
    if transcript is not None:
        codes = reference_codes(codec, recording, SILENCE_S if append_silence else 0.0)
    return Voice(
        name=name,
        speaker=speaker,
        ref_codes=codes,
        ref_text=transcript,
        language=language,
        source_sha256=recording.sha256,
        licence=licence,
        consent=consent,
        created=date.today().isoformat(),
    )


def speaker_vector(model: Qwen3TTS, recording: Recording) -> NDArray[np.float32]:
    encoder = model.speaker_encoder
    if encoder is None:
        raise UnsupportedRequestError(
            f"a {model.config.tts_model_type} checkpoint has no speaker encoder; "
            "clone with a Base one, such as Qwen/Qwen3-TTS-12Hz-0.6B-Base"
        )
    rate = encoder.config.sample_rate
    samples = torch.from_numpy(resample(recording.samples, recording.sample_rate, rate))
    mel = log_mel(samples[None], MelConfig(sample_rate=rate, mel_dim=encoder.config.mel_dim))
    vector = encoder(mel.to(model.device, model.dtype))[0]
    return vector.float().cpu().numpy()


def reference_codes(
    codec: Codec, recording: Recording, silence_s: float = 0.0
) -> NDArray[np.int64]:
    silence = np.zeros(round(silence_s * recording.sample_rate), np.float32)
    samples = np.concatenate((recording.samples, silence))
    rate = codec.config.input_sample_rate
    signal = torch.from_numpy(resample(samples, recording.sample_rate, rate))
    return codec.encode(signal.to(codec.device)).cpu().numpy()


def enroll_once(
    model: Qwen3TTS,
    codec: Codec,
    recording: Recording,
    *,
    name: str,
    transcript: str | None = None,
    cache: EnrolmentCache,
) -> Voice:
    """`enroll` with the cache: equal audio and transcript are enrolled once."""
    key = EnrolmentKey(
        source_sha256=recording.sha256,
        transcript=transcript,
        append_silence=True,
        width=model.config.talker_config.hidden_size,
        encoders=encoder_fingerprint(model, codec),
    )
    return cache.find_or_make(
        key, lambda: enroll(model, codec, recording, name=name, transcript=transcript)
    )


def encoder_fingerprint(model: Qwen3TTS, codec: Codec) -> str:
    """A cheap digest that differs between models with different encoders."""
    digest = hashlib.sha256()
    for encoder in (model.speaker_encoder, codec.encoder):
        for name, weight in encoder.named_parameters() if encoder is not None else ():
            if weight.ndim == 1:  # norms and biases: small, and changed by every training run
                digest.update(f"{name} {weight.dtype}".encode())
                digest.update(weight.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()
