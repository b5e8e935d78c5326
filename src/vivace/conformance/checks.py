"""Compares a loaded checkpoint with golden values, one row for each value.

Requests are checked three times. `codes` speaks the text through the engine. `codebook 0` and the
other codebooks compare the model's choices along the recorded codes, computed in one pass. `frames`
makes single frames with the backend, each after the recorded frames before it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vivace.conformance import observe
from vivace.conformance.golden import (
    Floats,
    GoldenCodec,
    GoldenEncoders,
    GoldenProbe,
    GoldenRequest,
    GoldenSet,
    Ints,
)
from vivace.conformance.report import Row, failed_row
from vivace.errors import NumericError, TTSError
from vivace.text.tokenizer import TextTokenizer
from vivace.tts import TTS

NUM_BACKEND_FRAMES = 16  # of each request, made by the backend one by one
MIN_COMPARED = 0.5  # share of these frames that do not depend on the repetition penalty
ENCODER_AGREEMENT = 0.9  # codes of noise are close to others; rounding may change a few
INFORMATION = "none"  # threshold of a row that is not required


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Errors are relative to the largest recorded value."""

    text_error: float
    state_error: float
    agreement: float  # share of equal choices
    frame_agreement: float  # the same of whole frames, where a code depends on those before it
    codec_error: float = 1e-3
    samples_db: float = 60.0


EXACT = Tolerance(text_error=1e-4, state_error=1e-3, agreement=1.0, frame_agreement=1.0)
TOLERANCES = {  # by dtype, or by weights that are not full
    "float32": Tolerance(text_error=1e-4, state_error=1e-3, agreement=0.99, frame_agreement=0.95),
    "bfloat16": Tolerance(text_error=0.03, state_error=0.15, agreement=0.85, frame_agreement=0.6),
    "int8": Tolerance(text_error=0.03, state_error=0.15, agreement=0.85, frame_agreement=0.6),
    "fp8": Tolerance(text_error=0.03, state_error=0.3, agreement=0.75, frame_agreement=0.5),
    "int4": Tolerance(text_error=0.03, state_error=0.5, agreement=0.6, frame_agreement=0.35),
}
HALF_CODEC_ERROR, HALF_CODEC_DB = 0.02, 35.0  # of a bfloat16 model on a GPU
CPP_CODEC_DB = {"C++, half": HALF_CODEC_DB, "C++, bf16": 24.0, "C++, int8": 24.0}


@dataclass(frozen=True, slots=True)
class Precision:
    """The allowed differences of a run from the golden values."""

    tolerance: Tolerance
    is_exact: bool  # float32 with the reference backend: codes must be equal

    @classmethod
    def of(cls, tts: TTS) -> Precision:
        model, is_cuda = tts.loaded.runtime.model, tts.device.type == "cuda"
        dtype = str(tts.dtype).removeprefix("torch.")
        is_plain = model.weights == "full" and dtype == "float32"
        if is_plain and tts.engine.backend.name == "eager":
            return cls(EXACT, True)
        found = TOLERANCES[dtype if model.weights == "full" else model.weights]
        if is_cuda and tts.dtype == torch.bfloat16:
            found = dataclasses.replace(
                found, codec_error=HALF_CODEC_ERROR, samples_db=HALF_CODEC_DB
            )
        else:
            codec = tts.engine.backend.facts().get("codec", "")
            samples_db = CPP_CODEC_DB.get(codec, found.samples_db)
            found = dataclasses.replace(found, samples_db=samples_db)
        return cls(found, False)


def check_tokens(tokenizer: TextTokenizer, sets: Sequence[GoldenSet]) -> Iterator[Row]:
    """Token ids of all texts of all requests."""
    for request in (request for one in sets for request in one.requests):
        found = [observe.chat_ids(tokenizer, request.text)]
        expected = [request.text_ids]
        if request.ref_text is not None and request.ref_ids is not None:
            found.append(observe.chat_ids(tokenizer, request.ref_text, has_reply=False))
            expected.append(request.ref_ids)
        if request.instruct is not None and request.instruct_ids is not None:
            found.append(observe.instruct_ids(tokenizer, request.instruct))
            expected.append(request.instruct_ids)
        num_equal = sum(_num_equal(*pair) for pair in zip(found, expected, strict=True))
        num_ids = sum(max(map(len, pair)) for pair in zip(found, expected, strict=True))
        yield _row(
            f"token ids, {request.name}",
            f"{num_equal}/{num_ids}",
            "all",
            num_equal == num_ids,
            values={"equal": num_equal, "ids": num_ids},
        )


def check_tokenizer(folder: Path, sets: Sequence[GoldenSet]) -> Iterator[Row]:
    """All ids of the tokenizer, also those that no recorded text has."""
    for one in sets:
        if one.tokenizer_digest is not None:
            is_equal = TextTokenizer.files_digest(folder) == one.tokenizer_digest
            yield _row("all ids", "equal" if is_equal else "other", "equal", is_equal)


def check_run(tts: TTS, sets: Sequence[GoldenSet], frame_ms: dict[str, float]) -> Iterator[Row]:
    """All rows of a loaded model, except token ids. `frame_ms` is filled with times by request."""
    precision = Precision.of(tts)
    for golden in sets:
        if golden.probe is not None:
            yield from _guarded("talker", _check_probe, tts, golden.probe, precision)
        for request in golden.requests:
            yield from _guarded(request.name, _check_choices, tts, request, precision)
            yield from _guarded(request.name, _check_codes, tts, request, precision, frame_ms)
        for codec in golden.codecs:
            yield from _guarded(codec.name, _check_codec, tts, codec, precision.tolerance)
        if golden.encoders is not None:
            yield from _guarded(
                "encoders", _check_encoders, tts, golden.encoders, precision.tolerance
            )


def _guarded(name: str, check: Callable[..., Iterator[Row]], *arguments: object) -> Iterator[Row]:
    """The rows of a check. A failure becomes a row."""
    try:
        yield from check(*arguments)
    except NumericError as error:
        yield Row(check=name, result=str(error), threshold="finite", status="differs")
    except (TTSError, RuntimeError, IndexError) as error:
        yield failed_row(name, error)


# -- talker ------------------------------------------------------------------------------------


def _check_probe(tts: TTS, probe: GoldenProbe, precision: Precision) -> Iterator[Row]:
    tolerance = precision.tolerance
    found = observe.text_vectors(tts, probe.text_ids)
    yield _error_row("text vectors", found, probe.text_vectors, tolerance.text_error)
    states, step = observe.talker_states(tts)
    rows = states[probe.rows]
    yield _error_row("talker, prompt rows", rows, probe.row_states, tolerance.state_error)
    yield _error_row("talker, one step", step, probe.step_state, tolerance.state_error)


def _check_choices(tts: TTS, request: GoldenRequest, precision: Precision) -> Iterator[Row]:
    choices = observe.choose_codes(tts, request)
    shares = (choices.codes == request.codes).mean(0)
    is_equal = choices.codes[:, 0] == request.codes[:, 0]
    first = np.append(is_equal, choices.is_end) if request.has_end else is_equal
    least = precision.tolerance.agreement
    yield _agreement_row(f"codebook 0, {request.name}", float(first.mean()), least)
    others = shares[1:]
    lowest = int(others.argmin()) + 1
    note = f", lowest {_percent(others.min())} of codebook {lowest}" if others.min() < 1 else ""
    yield _agreement_row(
        f"codebooks 1 to {len(others)}, {request.name}",
        float(others.mean()),
        least,
        note,
        {"codebooks": [round(float(share), 4) for share in others]},
    )
    if request.scores is not None:
        limit = precision.tolerance.state_error
        yield _check_scores(request.name, choices.scores, request.scores, limit)
    if not precision.is_exact:
        yield _check_frames(tts, request, choices, precision.tolerance.frame_agreement)


def _check_scores(name: str, found: Floats, expected: Floats, limit: float) -> Row:
    """The size of the logits, which the choices do not show."""
    if found.shape != expected.shape:
        return _error_row(f"scores, {name}", found, expected, limit)
    errors = np.abs(found - expected) / np.maximum(np.abs(expected), 1e-6)
    worst = int(errors.argmax())
    is_ok = bool(errors[worst] <= limit)
    return _row(
        f"scores, {name}",
        f"largest error {errors[worst]:.1e}{'' if is_ok else f', of codebook {worst}'}",
        f"at most {limit:g}",
        is_ok,
        values={"codebooks": [round(float(error), 6) for error in errors]},
    )


def _check_frames(tts: TTS, request: GoldenRequest, choices: observe.Choices, least: float) -> Row:
    """Single frames of the backend, where the repetition penalty does not change codebook 0."""
    num_frames = min(NUM_BACKEND_FRAMES, len(request.codes))
    frames = np.linspace(0, len(request.codes) - 1, num_frames).astype(int)
    kept = [int(one) for one in frames if choices.plain_first[one] == request.codes[one, 0]]
    name = f"frames, {request.name}"
    if len(kept) < MIN_COMPARED * num_frames:
        result = f"only {len(kept)} of {num_frames} frames can be compared"
        return _row(name, result, f"at least {_percent(least)}", False)
    made = observe.next_frames(tts, request, kept)
    share = float((made == request.codes[kept]).mean())
    return _agreement_row(name, share, least, f" of {len(kept)} frames")


def _check_codes(
    tts: TTS, request: GoldenRequest, precision: Precision, frame_ms: dict[str, float]
) -> Iterator[Row]:
    spoken = observe.speak(tts, request)
    frame_ms[request.name] = round(spoken.frame_ms, 3)
    num_equal = _num_equal(spoken.codes, request.codes)
    num_codes = max(spoken.codes.size, request.codes.size)
    frame = _first_difference(spoken.codes, request.codes)
    result = f"{num_equal}/{num_codes}"
    if frame is not None:
        result += f", first difference in frame {frame}"
    elif spoken.has_end != request.has_end:
        result += ", the end of speech differs"
    yield _row(
        f"codes, {request.name}",
        result,
        "all" if precision.is_exact else INFORMATION,
        frame is None and spoken.has_end == request.has_end,
        is_required=precision.is_exact,
        values={"equal": num_equal, "codes": num_codes, "first_difference": frame},
    )


# -- codec -------------------------------------------------------------------------------------


def _check_codec(tts: TTS, codec: GoldenCodec, tolerance: Tolerance) -> Iterator[Row]:
    latents = observe.after_transformer(tts, codec.codes)
    latents = latents[-len(codec.after_transformer) :, :: codec.column_stride]
    name = f"{codec.name}, transformer"
    yield _error_row(name, latents, codec.after_transformer, tolerance.codec_error)
    if codec.samples is None:
        return
    frame_size = tts.checkpoint.codec_config.decode_upsample_rate
    num_frames = -(-len(codec.samples) // frame_size)
    found = observe.samples(tts, codec.codes[:num_frames])[: len(codec.samples)]
    ratio_db = signal_to_error_db(found, codec.samples)
    yield _row(
        f"{codec.name}, samples",
        "equal" if ratio_db == math.inf else f"{ratio_db:.1f} dB",
        f"at least {tolerance.samples_db:g} dB",
        ratio_db >= tolerance.samples_db,
        values={"db": round(ratio_db, 2) if math.isfinite(ratio_db) else None},
    )


def _check_encoders(tts: TTS, golden: GoldenEncoders, tolerance: Tolerance) -> Iterator[Row]:
    found = observe.encoded_noise(tts)
    yield _error_row("speaker encoder", found.speaker, golden.speaker, tolerance.state_error)
    is_shape = found.codes.shape == golden.codes.shape
    share = float((found.codes == golden.codes).mean()) if is_shape else 0.0
    least = min(tolerance.agreement, ENCODER_AGREEMENT)
    yield _agreement_row("codec encoder", share, least)


def signal_to_error_db(found: Floats, expected: Floats) -> float:
    """Ratio of the signal to its error; -inf for samples that are not finite or missing."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return -math.inf
    error = float(np.square(found.astype(np.float64) - expected).sum())
    signal = float(np.square(expected.astype(np.float64)).sum())
    if not error:
        return math.inf
    return 10 * math.log10(signal / error) if signal else -math.inf


# -- rows --------------------------------------------------------------------------------------


def _error_row(name: str, found: Floats, expected: Floats, limit: float) -> Row:
    if found.shape != expected.shape:
        shapes = f"shape {found.shape}, recorded {expected.shape}"
        return Row(check=name, result=shapes, threshold=f"at most {limit:g}", status="differs")
    largest = float(np.abs(found - expected).max())
    error = largest / float(np.abs(expected).max() or 1.0)
    return _row(
        name,
        f"largest error {error:.1e}",
        f"at most {limit:g}",
        error <= limit,  # False for a value that is not a number
        values={"error": error if math.isfinite(error) else None},
    )


def _agreement_row(
    name: str,
    share: float,
    least: float,
    note: str = "",
    values: Mapping[str, Any] | None = None,
) -> Row:
    threshold = "all" if least == 1 else f"at least {_percent(least)}"
    is_ok, result = share >= least, f"{_percent(share)}{note}"
    return _row(name, result, threshold, is_ok, values={"share": round(share, 4), **(values or {})})


def _row(
    check: str,
    result: str,
    threshold: str,
    is_ok: bool,
    *,
    is_required: bool = True,
    values: Mapping[str, Any] | None = None,
) -> Row:
    return Row(
        check=check,
        result=result,
        threshold=threshold,
        status="ok" if is_ok else "differs",
        is_required=is_required,
        values=values or {},
    )


def _num_equal(found: Ints, expected: Ints) -> int:
    length = min(len(found), len(expected))
    return int((found[:length] == expected[:length]).sum())


def _first_difference(found: Ints, expected: Ints) -> int | None:
    length = min(len(found), len(expected))
    differs: NDArray[np.intp] = np.flatnonzero((found[:length] != expected[:length]).any(1))
    if len(differs):
        return int(differs[0])
    return None if len(found) == len(expected) else length


def _percent(share: float) -> str:
    text = f"{100 * share:.1f}".removesuffix(".0")
    return f"{text} %" if share == 1 or text != "100" else "99.9 %"
