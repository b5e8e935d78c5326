"""Records golden values of a checkpoint with the float32 eager backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from vivace._version import __version__
from vivace.conformance import observe
from vivace.conformance.golden import (
    PROBE_ROWS,
    PROBE_SEED,
    GoldenCodec,
    GoldenProbe,
    GoldenRequest,
    GoldenSet,
    Ints,
    read_dimensions,
)
from vivace.errors import RequestError
from vivace.speech import AUTO_LANGUAGE
from vivace.text.tokenizer import TextTokenizer
from vivace.tts import TTS

TEXT = "The same words always give the same codes."
REF_TEXT = "A short reference."
INSTRUCT = "A calm, low voice."
MAX_FRAMES = 40
NUM_REF_FRAMES = 12
NUM_TEXT_IDS = 8
NUM_PRESETS = 2
RECORDED_ROWS = (0, PROBE_ROWS // 2, PROBE_ROWS - 1)
NUM_SAMPLE_FRAMES = 4
NUM_LATENT_FRAMES = 4
NO_CODES = np.zeros((1, 1), np.int64)  # of a request that was not spoken yet


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    golden: GoldenSet
    margin: float  # smallest distance of the two highest scores of a choice


def record_golden(tts: TTS, name: str) -> Recording:
    """Record all values of a checkpoint. Load it in float32 with the backend `eager`."""
    requests, margins = [], []
    for planned in _plan_requests(tts):
        spoken = observe.speak(tts, planned)
        done = dataclasses.replace(planned, codes=spoken.codes, has_end=spoken.has_end)
        choices = observe.choose_codes(tts, done)
        if not np.array_equal(choices.codes, done.codes):
            raise RequestError(
                f"request {done.name!r} has choices that are too close to record: "
                f"the smallest margin is {choices.margin:.1e}"
            )
        requests.append(dataclasses.replace(done, scores=choices.scores))
        margins.append(choices.margin)
    golden = GoldenSet(
        name=name,
        source=f"vivace {__version__}, float32, eager",
        kind=tts.checkpoint.config.tts_model_type,
        dimensions=read_dimensions(tts.checkpoint),
        requests=requests,
        probe=_record_probe(tts),
        codecs=[_record_codec(tts)],
        encoders=observe.encoded_noise(tts) if tts.checkpoint.can_clone_in_context else None,
        tokenizer_digest=TextTokenizer.files_digest(tts.checkpoint.folder),
    )
    return Recording(golden, min(margins))


def _plan_requests(tts: TTS) -> Iterator[GoldenRequest]:
    """One request for each kind of voice that the checkpoint has."""
    config, tokenizer = tts.checkpoint.config, tts.tokenizer
    languages = config.talker_config.codec_language_id
    plain = GoldenRequest(
        name="no speaker",
        text=TEXT,
        language="english" if "english" in languages else AUTO_LANGUAGE,
        layout="whole",
        repetition_penalty=1.05,
        max_frames=MAX_FRAMES,
        has_end=False,
        text_ids=observe.chat_ids(tokenizer, TEXT),
        codes=NO_CODES,
    )
    if config.has_presets:
        for preset in tts.speakers[:NUM_PRESETS]:
            yield dataclasses.replace(plain, name=preset, preset=preset)
    elif config.tts_model_type == "voice_design":
        ids = observe.instruct_ids(tokenizer, INSTRUCT)
        yield dataclasses.replace(plain, name="design", instruct=INSTRUCT, instruct_ids=ids)
    if not config.can_clone:
        return
    width = config.talker_config.hidden_size
    speaker = (np.random.RandomState(PROBE_SEED).randn(width) * 0.05).astype(np.float32)
    cloned = dataclasses.replace(plain, name="x-vector", speaker=speaker)
    if config.tts_model_type == "base":
        cloned = dataclasses.replace(cloned, layout="streamed")
    yield cloned
    if config.tts_model_type == "base":
        yield dataclasses.replace(
            cloned,
            name="in context",
            ref_text=REF_TEXT,
            ref_ids=observe.chat_ids(tokenizer, REF_TEXT, has_reply=False),
            ref_codes=_random_codes(tts, NUM_REF_FRAMES),
        )


def _record_probe(tts: TTS) -> GoldenProbe:
    states, step = observe.talker_states(tts)
    size = tts.checkpoint.config.talker_config.text_vocab_size
    ids = np.random.RandomState(PROBE_SEED).randint(0, size, NUM_TEXT_IDS).astype(np.int64)
    return GoldenProbe(
        text_ids=ids,
        text_vectors=observe.text_vectors(tts, ids),
        rows=np.array(RECORDED_ROWS, np.int64),
        row_states=states[list(RECORDED_ROWS)],
        step_state=step,
    )


def _record_codec(tts: TTS) -> GoldenCodec:
    """Codes that are longer than the window of the transformer."""
    num_frames = tts.checkpoint.codec_config.decoder_config.sliding_window + NUM_LATENT_FRAMES
    codes = _random_codes(tts, num_frames)
    return GoldenCodec(
        name="codec",
        codes=codes,
        after_transformer=observe.after_transformer(tts, codes)[-NUM_LATENT_FRAMES:],
        samples=observe.samples(tts, codes[:NUM_SAMPLE_FRAMES]),
    )


def _random_codes(tts: TTS, num_frames: int) -> Ints:
    config = tts.checkpoint.codec_config.decoder_config
    random = np.random.RandomState(PROBE_SEED)
    shape = num_frames, config.num_quantizers
    return random.randint(0, config.codebook_size, shape).astype(np.int64)
