"""Translates arguments of the official classes: loading, sampling, lists and audio."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from vivace.checkpoint import find_folder
from vivace.speech import BOUNDS
from vivace.tts import TTS

LONG_BASE64 = 256  # characters; a longer string without path separators is read as base64
MAX_FRAMES = BOUNDS["max_frames"].high
# Arguments of transformers' from_pretrained that do not change the loaded model.
WITHOUT_EFFECT = {
    *("attn_implementation", "force_download", "low_cpu_mem_usage", "max_memory"),
    *("offload_buffers", "offload_folder", "offload_state_dict", "output_loading_info", "proxies"),
    *("resume_download", "trust_remote_code", "use_safetensors", "weights_only"),
}


def repeat_for_subtalker(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with the same values for the subtalker, the official name of the predictor."""
    repeated = {f"subtalker_{name}": sampling[name] for name in ("top_k", "top_p", "temperature")}
    return {**sampling, **repeated, "subtalker_dosample": sampling["do_sample"]}


# Defaults of the official class. The caller's values and the checkpoint's replace them.
HARD_DEFAULTS = repeat_for_subtalker(
    {
        "do_sample": True,
        "top_k": 50,
        "top_p": 1.0,
        "temperature": 0.9,
        "repetition_penalty": 1.05,
        "max_new_tokens": 2048,
    }
)


def load_tts(
    name: str | Path,
    *,
    device: Any = "auto",
    dtype: Any = None,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
) -> TTS:
    """Load a TTS from the arguments of `from_pretrained`."""
    folder = find_folder(
        name, revision=revision, cache_dir=cache_dir, offline=bool(local_files_only), token=token
    )
    return TTS.load(folder, device=device_of(device), dtype="auto" if dtype is None else dtype)


def official_loading(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Translate keywords of `from_pretrained` for `load_tts`. Unknown ones raise TypeError."""
    known = ("revision", "cache_dir", "local_files_only", "token")
    ours = {name: kwargs[name] for name in known if name in kwargs}
    if "use_auth_token" in kwargs:
        ours.setdefault("token", kwargs["use_auth_token"])
    ours["dtype"] = kwargs.get("dtype", kwargs.get("torch_dtype", "float32"))
    ours["device"] = kwargs.get("device_map") or "auto"
    taken = {*known, "use_auth_token", "dtype", "torch_dtype", "device_map", *WITHOUT_EFFECT}
    if unknown := sorted(set(kwargs) - taken):
        raise TypeError(
            f"from_pretrained() got an unexpected keyword argument {unknown[0]!r}; "
            "it is unknown or not supported"
        )
    return ours


def device_of(device: Any) -> str:
    """Accepts a device, a GPU's number, or transformers' map with a single device."""
    if isinstance(device, Mapping) and len(set(map(str, device.values()))) == 1:
        device = next(iter(device.values()))
    if isinstance(device, int):
        return f"cuda:{device}"
    return "auto" if str(device) in ("auto", "balanced", "sequential") else str(device)


def merge_defaults(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Given values replace the checkpoint's defaults, which replace the official ones."""
    settled = {name: value for name, value in defaults.items() if value is not None}
    merged = {name: settled.get(name, value) for name, value in HARD_DEFAULTS.items()}
    return {**merged, **{name: value for name, value in given.items() if value is not None}}


def to_sampling(merged: Mapping[str, Any], max_frames: int | None) -> dict[str, Any]:
    """Rename options for `SamplingOptions`. `max_frames` None keeps the checkpoint's limit."""
    is_sampled, is_residual_sampled = merged["do_sample"], merged["subtalker_dosample"]
    sampling = {
        "temperature": merged["temperature"] if is_sampled else 0.0,
        "top_k": merged["top_k"],
        "top_p": merged["top_p"],
        "repetition_penalty": merged["repetition_penalty"],
        "predictor_temperature": merged["subtalker_temperature"] if is_residual_sampled else 0.0,
        "predictor_top_k": merged["subtalker_top_k"],
        "predictor_top_p": merged["subtalker_top_p"],
    }
    sampling = {name: _within_bounds(name, value) for name, value in sampling.items()}
    if merged.get("seed") is not None:
        sampling["seed"] = merged["seed"]
    if max_frames is not None:
        sampling["max_frames"] = _within_bounds("max_frames", max(1, max_frames))
    if merged.get("min_new_tokens") is not None:
        most = sampling.get("max_frames", MAX_FRAMES)
        sampling["min_frames"] = min(merged["min_new_tokens"], most)
    return sampling


def _within_bounds(name: str, value: Any) -> Any:
    """The nearest value that `SamplingParams` accepts, for values that the official classes accept.

    The official classes accept every temperature and penalty above 0, every `top_k` and a `top_p`
    of 0. Other invalid values are unchanged, so `SamplingParams` rejects them.
    """
    bounds, is_share = BOUNDS[name], name.endswith("top_p")
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number:
        return value
    if 0 < value < bounds.low or (is_share and value == 0):
        return bounds.low
    return bounds.high if value > bounds.high and not is_share else value


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def spread(value: Any, count: int) -> list[Any]:
    """Repeat a single value `count` times; a longer list is unchanged."""
    values = listed(value)
    return values * count if len(values) == 1 else values


def check_sizes(**columns: list[Any]) -> None:
    """Raise the official ValueError unless all lists have the same length."""
    if len({len(column) for column in columns.values()}) > 1:
        found = ", ".join(f"{name}={len(column)}" for name, column in columns.items())
        raise ValueError(f"Batch size mismatch: {found}")


def source_of(audio: Any) -> Any:
    """Decode bare base64, as the official code does. `read_audio` reads all other sources."""
    if isinstance(audio, str) and len(audio) > LONG_BASE64 and not {"/", "\\"} & set(audio):
        try:
            return base64.b64decode(audio, validate=True)
        except binascii.Error:
            return audio
    if isinstance(audio, np.ndarray):
        raise ValueError("For numpy waveform input, pass a tuple (audio, sr).")
    return audio
