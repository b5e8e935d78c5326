"""Sets a run up: prepares the data, and loads the trained modules."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivace.adapter import free_speaker_ids, with_speakers
from vivace.audio.files import Recording
from vivace.audio.sandbox import Sandbox
from vivace.checkpoint import EMBEDDED, Checkpoint, find_folder
from vivace.device.choice import pick_device, pick_dtype
from vivace.errors import RequestError, TrainingDataError
from vivace.finetune.encoder import Recognise, RecordingEncoder, encoder_digest
from vivace.finetune.examples import ExampleWriter
from vivace.finetune.files import write_file
from vivace.finetune.options import DataOptions, fingerprint
from vivace.finetune.prepare import Preparation, PreparedData, Progress
from vivace.finetune.recordings import RecordingReader
from vivace.finetune.request import FinetuneRequest
from vivace.finetune.sources import Defaults, Entry, Rejection, Row, read_rows
from vivace.finetune.speech_judge import Vector
from vivace.finetune.store import EncodedStore
from vivace.finetune.trainable import Trainables, make_trainable
from vivace.model.talker import Qwen3TTS
from vivace.prompt import language_id
from vivace.recogniser import Recogniser, check_recogniser
from vivace.speech import AUTO_LANGUAGE, language_name
from vivace.voices.enroll import speaker_vector

MIN_MINUTES = 1.0  # less speech gives a note
MIN_REPEATED, MAX_REPEATED_SHARE = 8, 0.25  # recordings of one transcript that give a note


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """Everything that training needs."""

    checkpoint: Checkpoint  # the base
    base_digest: str
    model: Qwen3TTS
    trainables: Trainables
    writer: ExampleWriter
    data: PreparedData
    speaker_ids: Mapping[str, int]  # of new speakers
    settings: str  # identifies a run that can be resumed
    recognise: Recognise | None
    vector: Vector | None
    warnings: Sequence[str] = ()

    def facts(self, request: FinetuneRequest) -> dict[str, object]:
        """Rows of the report."""
        minutes = sum(clip.seconds for clip in self.data.train) / 60
        kind = "all weights" if request.training.full else f"LoRA of rank {request.training.rank}"
        return {
            "base": request.model_name,
            "speakers": ", ".join(self.data.speakers) or "none (voice design)",
            "recordings": f"{len(self.data.train)} ({minutes:.1f} minutes)",
            "held out": len(self.data.held_out),
            "rejected": len(self.data.rejections),
            "transcripts checked": sum(clip.is_checked for clip in self.data.clips),
            "trained": f"{self.trainables.num_values:,} values, {kind}",
            "device": f"{self.model.device}, {str(self.model.dtype).removeprefix('torch.')}",
            "data SHA-256": self.data.sha256,
            "licence": request.licence or "not stated",
            "consent": request.consent or "not stated",
        }


def prepare(request: FinetuneRequest, progress: Progress) -> Prepared:
    """Raises TrainingDataError if the data cannot be used, before any training."""
    folder = find_folder(
        request.model, revision=request.revision, cache_dir=None, offline=request.offline
    )
    checkpoint = Checkpoint.open(folder)
    if checkpoint.config.quantization_config is not None:
        raise TrainingDataError(
            f"{request.model_name} has quantized weights, which cannot be trained; fine-tune the "
            "checkpoint it was made from, and load the adapter with --weights int8 or int4"
        )
    language_id(checkpoint.config.talker_config, language_name(request.recordings.language), None)
    rows = _rows(request, checkpoint)
    _check_encoder(checkpoint, rows)
    ids = _new_speakers(checkpoint, rows)
    tuned = with_speakers(checkpoint.config, ids)
    writer = ExampleWriter(tuned, checkpoint.load_tokenizer(), ids)
    device = pick_device(request.device, checkpoint.num_bytes)
    dtype = pick_dtype(request.dtype, device)
    model = checkpoint.load_plain_model(device, dtype)
    recognise = _recogniser(request.recordings)
    data = _prepare_data(request, checkpoint, model, writer, rows, recognise, progress)
    vectors = _first_vectors(model, data, ids)
    has_vectors = any(clip.speaker_vector is not None for clip in data.train)
    digest = checkpoint.digest()
    return Prepared(
        checkpoint=checkpoint,
        base_digest=digest,
        model=model,
        trainables=make_trainable(model, request.training, vectors, trains_vectors=not has_vectors),
        writer=writer,
        data=data,
        speaker_ids=ids,
        settings=_settings(request, digest, data, dtype),
        recognise=recognise,
        vector=partial(_vector, model) if has_vectors else None,
        warnings=_warnings(request, data, is_checking=recognise is not None),
    )


def _rows(request: FinetuneRequest, checkpoint: Checkpoint) -> list[Row]:
    is_design = checkpoint.config.tts_model_type == "voice_design"
    defaults = Defaults(
        speaker=None if is_design else request.name,
        language=request.recordings.language,
        by_folder=request.name is None and not is_design,
    )
    rows = read_rows(request.data, defaults)
    _check_name(defaults.speaker, request.data, rows)
    return [_check_speaker(row, is_design=is_design) for row in rows]


def _check_name(name: str | None, data: Path, rows: Sequence[Row]) -> None:
    """Raise TrainingDataError if all recordings state other speakers than `name`."""
    stated = {row.transcript.speaker for row in rows if isinstance(row, Entry)}
    if name is not None and stated and name not in stated:
        names = ", ".join(sorted(str(one) for one in stated))
        raise TrainingDataError(
            f"--name is {name}, but {data} names the speaker of each recording: {names}; "
            "leave --name out, or remove the speakers from the data"
        )


def _check_encoder(checkpoint: Checkpoint, rows: Sequence[Row]) -> None:
    """Raise TrainingDataError for audio and a codec without a trained encoder.

    Older folders of the embedded voice do not state that their encoder is untrained.
    """
    if not any(isinstance(row, Entry) and row.audio is not None for row in rows):
        return
    is_embedded = encoder_digest(checkpoint.folder) == encoder_digest(EMBEDDED)
    if is_embedded or not checkpoint.codec_config.has_encoder:
        raise TrainingDataError(
            "the codec of this checkpoint has no trained encoder, so it cannot learn from audio "
            "files; docs/finetuning.md shows how to make audio_codes for the embedded voice, or "
            "use a released checkpoint"
        )


def _check_speaker(row: Row, *, is_design: bool) -> Row:
    if isinstance(row, Rejection):
        return row
    speaker, instruct = row.transcript.speaker, row.transcript.instruct
    if is_design and speaker is not None:
        return Rejection(row.where, "a voice_design checkpoint has no speakers; leave speaker out")
    if is_design and not instruct:
        return Rejection(row.where, "no instruct; a voice_design checkpoint needs a description")
    if not is_design and speaker is None:
        return Rejection(row.where, "no speaker; give --name, or a speaker for each recording")
    return row


def _new_speakers(checkpoint: Checkpoint, rows: Sequence[Row]) -> dict[str, int]:
    """Ids of the speakers that the checkpoint does not have yet."""
    names = {row.transcript.speaker for row in rows if isinstance(row, Entry)}
    known = {name.lower() for name in checkpoint.config.talker_config.spk_id}
    new = sorted(name for name in names if name is not None and name.lower() not in known)
    return free_speaker_ids(checkpoint.config, new)


def _prepare_data(
    request: FinetuneRequest,
    checkpoint: Checkpoint,
    model: Qwen3TTS,
    writer: ExampleWriter,
    rows: Sequence[Row],
    recognise: Recognise | None,
    progress: Progress,
) -> PreparedData:
    codec = checkpoint.load_codec(model.device)
    with Sandbox() as sandbox, EncodedStore(request.folder / "recordings.jsonl") as store:
        reader = RecordingReader(request.recordings, sandbox)
        encoder = RecordingEncoder(model, codec, reader, store, recognise)
        preparation = Preparation(request.recordings, writer, encoder)
        try:
            data = preparation.run(request.data, rows, progress)
        finally:
            _write_rejections(request.folder / "rejected.csv", preparation.rejections)
    report = json.dumps(data.describe(), indent=2)
    write_file(request.folder / "data.json", f"{report}\n")
    return data


def _write_rejections(path: Path, rejections: Sequence[Rejection]) -> None:
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(("recording", "reason"))
    table.writerows((one.where, one.reason) for one in rejections)
    write_file(path, text.getvalue())


def _recogniser(options: DataOptions) -> Recognise | None:
    """Whisper, if it is installed or requested."""
    if options.check_transcripts is False:
        return None
    try:
        check_recogniser()
    except RequestError:
        if options.check_transcripts:
            raise
        return None
    recognise: Recognise = Recogniser()
    return recognise


def _first_vectors(
    model: Qwen3TTS, data: PreparedData, ids: Mapping[str, int]
) -> dict[str, Tensor]:
    """The vector of each new speaker: its mean x-vector, or the mean of the known speakers."""
    vectors: dict[str, Tensor] = {}
    for name in ids:
        own = [clip for clip in data.train if clip.transcript.speaker == name]
        if not own:
            raise TrainingDataError(
                f"the speaker {name!r} has no recording to train on: its recordings are rejected "
                "(rejected.csv has the reasons), or the only one is held out"
            )
        found = [clip.speaker_vector for clip in own if clip.speaker_vector is not None]
        if found:
            vectors[name] = torch.from_numpy(np.mean(found, axis=0)).to(model.device)
        elif not model.config.has_presets and model.speaker_encoder is not None:
            raise TrainingDataError(
                f"the speaker {name!r} has codes only; a Base model needs recordings for its vector"
            )
        else:
            table = model.talker.model.codec_embedding.weight
            known = list(model.config.talker_config.spk_id.values())
            vectors[name] = table.detach()[known].float().mean(0)
    return vectors


def _vector(model: Qwen3TTS, recording: Recording) -> NDArray[np.float32]:
    with torch.inference_mode():
        return speaker_vector(model, recording)


def _settings(request: FinetuneRequest, digest: str, data: PreparedData, dtype: torch.dtype) -> str:
    values = [digest, data.sha256, str(dtype), request.name or ""]
    held_out = [clip.sha256 for clip in data.held_out]
    text = json.dumps([*values, held_out, fingerprint(request.recordings, request.training)])
    return hashlib.sha256(text.encode()).hexdigest()


def _warnings(request: FinetuneRequest, data: PreparedData, *, is_checking: bool) -> list[str]:
    found = []
    minutes = sum(clip.seconds for clip in data.train) / 60
    if minutes < MIN_MINUTES:
        found.append(f"only {60 * minutes:.0f} s of speech; at least 5 minutes are recommended")
    if data.rejections:
        found.append(
            f"rejected recordings: {len(data.rejections)}; see {request.folder / 'rejected.csv'}"
        )
    unchecked = [clip for clip in data.clips if not clip.is_checked]
    num_unknown = sum(clip.transcript.language == AUTO_LANGUAGE for clip in unchecked)
    if is_checking and num_unknown:
        found.append(
            f"transcripts that were not checked: {num_unknown}, because their language is not "
            "stated; give --language english if it is English"
        )
    texts = Counter(clip.transcript.text for clip in data.clips)
    [(text, number)] = texts.most_common(1)
    if number >= MIN_REPEATED and number > MAX_REPEATED_SHARE * texts.total():
        found.append(
            f"{number} of {texts.total()} recordings have the transcript {text[:40]!r}; check that "
            "the data has the transcript in the right column"
        )
    return found
