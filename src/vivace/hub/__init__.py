"""Finds the folder of a model: the embedded voice, a local folder, or a download from the hub."""

from vivace.hub.catalogue import EMBEDDED, MODELS, RELEASED, ModelEntry
from vivace.hub.download import cache_folder
from vivace.hub.folders import (
    CODEC,
    cached_share,
    codec_folder,
    find_folder,
    local_folder,
    missing_files,
    model_id,
    shard_paths,
    weight_bytes,
)

__all__ = [
    "CODEC",
    "EMBEDDED",
    "MODELS",
    "RELEASED",
    "ModelEntry",
    "cache_folder",
    "cached_share",
    "codec_folder",
    "find_folder",
    "local_folder",
    "missing_files",
    "model_id",
    "shard_paths",
    "weight_bytes",
]
