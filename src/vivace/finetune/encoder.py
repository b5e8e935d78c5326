"""Recordings to codes: the codec's and the speaker's encoder, and a recogniser if there is one."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open

from vivace.audio.files import Recording
from vivace.errors import AudioError, RequestError
from vivace.finetune.options import DataOptions
from vivace.finetune.recordings import LIMITS, RecordingReader
from vivace.finetune.sources import Entry
from vivace.finetune.store import Encoded, EncodedStore
from vivace.hub import CODEC, shard_paths
from vivace.model.codec import Codec
from vivace.model.config import ModelConfig
from vivace.model.talker import Qwen3TTS
from vivace.recogniser import Samples
from vivace.speech import AUTO_LANGUAGE
from vivace.voices.enroll import encoder_fingerprint, reference_codes, speaker_vector

NUM_SPEAKER_VECTORS = 32  # recordings of a speaker whose vectors are averaged
AUDIO_OPTIONS = ("min_seconds", "max_seconds", "min_sample_rate", "loudness")

Recognise = Callable[[Samples, int], str]


def encoder_digest(folder: Path) -> str:
    """A digest of the codec encoder's biases, as stored."""
    digest = hashlib.sha256()
    for path in shard_paths(folder / CODEC):
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                if name.startswith("encoder.") and name.endswith("bias"):
                    values = file.get_tensor(name).view(torch.uint8).numpy()
                    digest.update(name.encode() + values.tobytes())
    return digest.hexdigest()


def recognised_languages(config: ModelConfig) -> frozenset[str]:
    """Languages of transcripts that the recogniser can check."""
    is_english = list(config.talker_config.codec_language_id) == ["english"]
    return frozenset({"english", AUTO_LANGUAGE} if is_english else {"english"})


class RecordingEncoder:
    """Encodes each recording once; `store` keeps the results."""

    def __init__(
        self,
        model: Qwen3TTS,
        codec: Codec,
        reader: RecordingReader,
        store: EncodedStore,
        recognise: Recognise | None = None,  # English only
    ) -> None:
        self._model, self._codec, self._reader, self._store = model, codec, reader, store
        self._recognise = recognise
        self._num_vectors: Counter[str] = Counter()
        self._settings = self._describe(reader.options)
        self._languages = recognised_languages(model.config)

    def encode(self, entry: Entry) -> tuple[Encoded, str]:
        """The codes, and the digest of the recording. Raises AudioError or RequestError."""
        if entry.codes is not None:
            return self._check_codes(entry)
        assert entry.audio is not None
        try:
            LIMITS.check_encoded(entry.audio.stat().st_size)
            content = entry.audio.read_bytes()
        except OSError as error:
            raise AudioError(f"cannot be read: {error.strerror or error}") from error
        digest = hashlib.sha256(content).hexdigest()
        wants_vector = self._wants_vector(entry)
        is_recognised = entry.transcript.language in self._languages
        wants_transcript = self._recognise is not None and is_recognised
        key = f"{digest} {self._settings} {wants_vector} {wants_transcript}"
        found = self._store.get(key)
        if found is None:
            found = self._encode(entry, wants_vector, wants_transcript)
            self._store.put(key, found)
        if found.speaker is not None:
            self._num_vectors[str(entry.transcript.speaker)] += 1
        return found, digest

    def _encode(self, entry: Entry, wants_vector: bool, wants_transcript: bool) -> Encoded:
        assert entry.audio is not None
        try:
            recording = self._reader.read(entry.audio)
        except AudioError as error:
            return Encoded(problem=str(error).removeprefix(f"{entry.audio}: "))
        return self._encode_recording(recording, wants_vector, wants_transcript)

    @torch.inference_mode()
    def _encode_recording(
        self, recording: Recording, wants_vector: bool, wants_transcript: bool
    ) -> Encoded:
        recognised = None
        if self._recognise is not None and wants_transcript:
            recognised = self._recognise(recording.samples, recording.sample_rate)
        return Encoded(
            codes=reference_codes(self._codec, recording),
            seconds=recording.duration_s,
            recognised=recognised,
            speaker=speaker_vector(self._model, recording) if wants_vector else None,
        )

    def _wants_vector(self, entry: Entry) -> bool:
        speaker = entry.transcript.speaker
        has_encoder = self._model.speaker_encoder is not None and speaker is not None
        return has_encoder and self._num_vectors[str(speaker)] < NUM_SPEAKER_VECTORS

    def _check_codes(self, entry: Entry) -> tuple[Encoded, str]:
        """Codes that were prepared elsewhere."""
        assert entry.codes is not None
        config = self._model.config.talker_config
        num_books, size = config.num_code_groups, config.code_predictor_config.vocab_size
        codes = entry.codes
        if codes.shape[1] != num_books or codes.min() < 0 or codes.max() >= size:
            raise RequestError(
                f"audio_codes have {codes.shape[1]} codebooks and codes from {codes.min()} to "
                f"{codes.max()}; the model has {num_books} codebooks of {size} codes"
            )
        config_ = self._codec.config
        seconds = len(codes) * config_.decode_upsample_rate / config_.output_sample_rate
        options = self._reader.options
        if not options.min_seconds <= seconds <= options.max_seconds:
            raise RequestError(f"{seconds:.2f} s of codes; they are too short or too long")
        digest = hashlib.sha256(codes.tobytes()).hexdigest()
        return Encoded(codes=codes, seconds=seconds), digest

    def _describe(self, options: DataOptions) -> str:
        """A digest of everything that the codes depend on."""
        values = {name: getattr(options, name) for name in AUDIO_OPTIONS}
        values["encoders"] = encoder_fingerprint(self._model, self._codec)
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
