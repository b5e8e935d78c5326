"""Reference audio becomes a Voice: a speaker vector and, with a transcript, codes to go on from."""

from __future__ import annotations

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
from vivace.voices.voice import Voice


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
) -> Voice:
    """A voice from one recording; `transcript` must be every word that is said in it."""
    check_reference(recording)
    if transcript is not None and not isinstance(transcript, str):
        raise RequestError(f"transcript must be a string, not {type(transcript).__name__}")
    if transcript is not None and not transcript.strip():
        raise RequestError("the transcript is blank; leave it out to clone by speaker vector alone")
    return Voice(
        name=name,
        speaker=speaker_vector(model, recording),
        ref_codes=reference_codes(codec, recording) if transcript is not None else None,
        ref_text=transcript,
        language=language,
        source_sha256=recording.sha256,
        licence=licence,
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


def reference_codes(codec: Codec, recording: Recording) -> NDArray[np.int64]:
    rate = codec.config.input_sample_rate
    samples = torch.from_numpy(resample(recording.samples, recording.sample_rate, rate))
    return codec.encode(samples.to(codec.device)).cpu().numpy()
