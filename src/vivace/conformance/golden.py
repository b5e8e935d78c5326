"""Golden values: recorded results of a checkpoint, and the file format that stores them.

A file is an npz archive. Its member `metadata` is JSON with all sets; an array in it is replaced by
the name of its member.
"""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vivace.checkpoint import Checkpoint
from vivace.disk import write_whole
from vivace.errors import RequestError
from vivace.speech import TextLayout

T = TypeVar("T")

FORMAT = "vivace.golden/1"
SHIPPED = tuple(Path(__file__).parent / name for name in ("released.npz", "embedded.npz"))
MAX_FILE_BYTES = 64 << 20
NUM_ROLE_IDS = 3  # `<|im_start|>`, the role, a newline
NUM_END_IDS = 2  # `<|im_end|>`, a newline
PROBE_SEED, PROBE_ROWS, PROBE_SCALE = 42, 10, 0.05

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GoldenRequest:
    """A greedy request and the codes of its speech."""

    name: str
    text: str
    language: str
    layout: TextLayout
    repetition_penalty: float
    max_frames: int
    has_end: bool  # the model ended the speech; False: `max_frames` did
    text_ids: Ints  # of the official chat string with the text
    codes: Ints  # [frames, codebooks]
    preset: str | None = None
    instruct: str | None = None
    instruct_ids: Ints | None = None  # of the complete user turn
    speaker: Floats | None = None  # [hidden]
    ref_text: str | None = None
    ref_ids: Ints | None = None  # of the official chat string with the reference's text
    ref_codes: Ints | None = None  # [frames, codebooks]
    scores: Floats | None = None  # [codebooks], the highest logit, mean of all frames

    def __post_init__(self) -> None:
        _check_shapes(self, {"text_ids": 1, "codes": 2, "instruct_ids": 1, "speaker": 1})
        _check_shapes(self, {"ref_ids": 1, "ref_codes": 2, "scores": 1})
        if len(self.text_ids) <= 2 * NUM_ROLE_IDS + NUM_END_IDS or not len(self.codes):
            raise ValueError(f"request {self.name!r} has no text or no codes")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GoldenProbe:
    """Outputs of the talker alone. Its input rows are random numbers from a fixed seed."""

    text_ids: Ints  # [N]
    text_vectors: Floats  # [N, hidden], after the text projection
    rows: Ints  # [M], the prompt rows whose states are recorded
    row_states: Floats  # [M, hidden], after the last norm
    step_state: Floats  # [hidden], of one further row

    def __post_init__(self) -> None:
        _check_shapes(self, {"text_ids": 1, "text_vectors": 2, "rows": 1})
        _check_shapes(self, {"row_states": 2, "step_state": 1})
        if len(self.text_ids) != len(self.text_vectors) or len(self.rows) != len(self.row_states):
            raise ValueError("a probe has more inputs than outputs, or fewer")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GoldenCodec:
    """Outputs of the codec's decoder for some codes."""

    name: str
    codes: Ints  # [frames, codebooks]
    after_transformer: Floats  # [M, columns], of the last M frames
    column_stride: int = 1  # distance of the recorded columns
    samples: Floats | None = None  # of the first frames

    def __post_init__(self) -> None:
        _check_shapes(self, {"codes": 2, "after_transformer": 2, "samples": 1})
        if self.column_stride < 1 or len(self.after_transformer) > len(self.codes):
            raise ValueError(f"codec values {self.name!r} do not fit their codes")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GoldenEncoders:
    """Outputs of the encoders that clone voices. Their input is noise from a fixed seed."""

    speaker: Floats  # [width]
    codes: Ints  # [frames, codebooks]

    def __post_init__(self) -> None:
        _check_shapes(self, {"speaker": 1, "codes": 2})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GoldenSet:
    """Values of one checkpoint, or of a part that several checkpoints share."""

    name: str
    source: str  # who recorded it, and how
    kind: str | None  # `tts_model_type` of the checkpoint; None: any
    dimensions: Mapping[str, int]  # of the checkpoint, by the names of `read_dimensions`
    requests: Sequence[GoldenRequest] = ()
    probe: GoldenProbe | None = None
    codecs: Sequence[GoldenCodec] = ()
    encoders: GoldenEncoders | None = None
    tokenizer_digest: str | None = None  # `TextTokenizer.files_digest`

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint has the kind and the dimensions of the recorded one."""
        return not self.differences(checkpoint)

    def differences(self, checkpoint: Checkpoint) -> list[str]:
        """How the checkpoint differs from the recorded one in kind and dimensions."""
        kind, found = checkpoint.config.tts_model_type, read_dimensions(checkpoint)
        differences = [f"type {kind}, not {self.kind}"] if self.kind not in (None, kind) else []
        return differences + [
            f"{name} {found.get(name, 'missing')}, not {size}"
            for name, size in self.dimensions.items()
            if found.get(name) != size
        ]

    def check_values(self, checkpoint: Checkpoint) -> None:
        """Raise RequestError if a value is outside the tables of the checkpoint."""
        talker = checkpoint.config.talker_config
        limits = {
            "text ids": (talker.text_vocab_size, self._text_ids()),
            "codes": (talker.code_predictor_config.vocab_size, self._codes()),
        }
        for name, (size, arrays) in limits.items():
            for array in arrays:
                if array.size and not 0 <= array.min() <= array.max() < size:
                    raise RequestError(f"golden set {self.name!r} has {name} outside 0 to {size}")
        num_books = talker.num_code_groups
        if any(codes.shape[1] != num_books for codes in self._codes()):
            raise RequestError(f"golden set {self.name!r} has codes of other codebooks")

    def _text_ids(self) -> list[Ints]:
        ids = [each for one in self.requests for each in (one.text_ids, one.ref_ids)]
        ids += [one.instruct_ids for one in self.requests]
        ids += [self.probe.text_ids] if self.probe else []
        return [each for each in ids if each is not None]

    def _codes(self) -> list[Ints]:
        codes = [each for one in self.requests for each in (one.codes, one.ref_codes)]
        codes += [one.codes for one in self.codecs]
        return [each for each in codes if each is not None]


def probe_inputs(width: int) -> tuple[Floats, Floats]:
    """The talker's input of every probe: prompt rows [10, width] and one further row [1, width]."""
    random = np.random.RandomState(PROBE_SEED)  # its numbers never change
    rows = random.randn(PROBE_ROWS, width) * PROBE_SCALE
    step = random.randn(1, width) * PROBE_SCALE
    return rows.astype(np.float32), step.astype(np.float32)


def read_dimensions(checkpoint: Checkpoint) -> dict[str, int]:
    """The dimensions of talker, predictor and codec by name, such as `talker.hidden_size`."""
    talker = checkpoint.config.talker_config
    sections = {
        "talker": talker,
        "predictor": talker.code_predictor_config,
        "codec": checkpoint.codec_config.decoder_config,
    }
    found: dict[str, int] = {}
    for section, config in sections.items():
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            if type(value) is int and not field.name.endswith("_id"):
                found[f"{section}.{field.name}"] = value
    return found


def encoder_samples() -> Floats:
    """The input of the encoders: one second of noise at 24 kHz, in steps of loudness."""
    random = np.random.RandomState(PROBE_SEED)
    levels = np.repeat(random.uniform(0.02, 0.2, 10), 2_400)
    return (levels * random.randn(len(levels))).astype(np.float32)


# -- files -------------------------------------------------------------------------------------


def load_golden(path: Path) -> list[GoldenSet]:
    """Read a golden file. Any other file raises RequestError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {MAX_FILE_BYTES >> 20} MB")
        content = path.read_bytes()
        if not content.startswith(b"PK"):  # NumPy would offer to load it as a pickle
            raise ValueError("it is not an npz archive")
        with np.load(io.BytesIO(content)) as file:
            arrays = {name: file[name] for name in file.files}
        raw = json.loads(arrays["metadata"].tobytes())
        if raw["format"] != FORMAT:
            raise ValueError(f"its format is {raw['format']!r}, not {FORMAT!r}")
        return [_read_set(one, arrays) for one in raw["sets"]]
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise RequestError(f"{path} is not a golden file: {error}") from error


def save_golden(sets: Sequence[GoldenSet], path: Path, *, replace: bool = False) -> None:
    """Write a golden file."""
    arrays: dict[str, NDArray[Any]] = {}
    raw = {"format": FORMAT, "sets": [_pack(one, str(i), arrays) for i, one in enumerate(sets)]}
    text = json.dumps(raw, ensure_ascii=False).encode()
    content = io.BytesIO()
    members: dict[str, Any] = {"metadata": np.frombuffer(text, np.uint8), **arrays}
    np.savez_compressed(content, **members)
    try:
        write_whole(path, content.getvalue(), replace=replace)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror or error}") from error


def _pack(value: Any, name: str, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[name] = value if value.dtype == np.float32 else value.astype(_small(value))
        return {"array": name}
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {key: _pack(each, f"{name}/{key}", arrays) for key, each in fields.items()}
    if isinstance(value, (list, tuple)):
        return [_pack(each, f"{name}/{index}", arrays) for index, each in enumerate(value)]
    return value


def _small(values: NDArray[Any]) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if not values.size or values.max() < 2**16 else np.uint32


def _read_set(raw: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> GoldenSet:
    probe, encoders = raw["probe"], raw.get("encoders")
    return _read(
        GoldenSet,
        {
            **raw,
            "requests": [_read(GoldenRequest, one, arrays) for one in raw["requests"]],
            "probe": None if probe is None else _read(GoldenProbe, probe, arrays),
            "codecs": [_read(GoldenCodec, one, arrays) for one in raw["codecs"]],
            "encoders": None if encoders is None else _read(GoldenEncoders, encoders, arrays),
        },
        arrays,
    )


def _read(cls: type[T], raw: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> T:
    def unpack(value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() != {"array"}:
            return value
        array = arrays[value["array"]]
        is_float = np.issubdtype(array.dtype, np.floating)
        return array.astype(np.float32 if is_float else np.int64)

    return cls(**{name: unpack(value) for name, value in raw.items()})


def _check_shapes(item: object, shapes: Mapping[str, int]) -> None:
    """Raise ValueError if an array has another number of dimensions, or a number is not finite."""
    for name, num_dimensions in shapes.items():
        array = getattr(item, name)
        if array is None:
            continue
        if not isinstance(array, np.ndarray) or array.ndim != num_dimensions:
            raise ValueError(f"{name} is not an array of {num_dimensions} dimension(s)")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} has a number that is not finite")
