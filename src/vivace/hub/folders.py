"""Folders of models: finds or downloads them and checks that no file is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType

from vivace.arguments import as_path, check_flag
from vivace.checkpoint_files import WEIGHTS, read_json
from vivace.errors import CheckpointError
from vivace.hub.catalogue import EMBEDDED, RELEASED, ModelEntry, suggest_name
from vivace.hub.download import CACHE_PREFIX, download, model_cache
from vivace.speech import shown

NEEDED = ("config.json", "vocab.json", "merges.txt", "tokenizer_config.json")
CODEC = "speech_tokenizer"  # the codec's folder inside a checkpoint folder
MAX_SHOWN_CHARS = 200  # of a name that is rejected
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SHARD_NAME = re.compile(r"[\w.-]+\.safetensors")


def find_folder(
    name: str | Path | None,
    *,
    revision: str | None,
    cache_dir: str | Path | None,
    offline: bool,
    token: str | bool | None = None,
    is_codec: bool = False,
) -> Path:
    """Return a local folder, or download a hub id (with `offline`: find it in the cache).

    None and "mini" are the embedded voice. `is_codec`: accept a folder with only a codec."""
    _check_source(revision, cache_dir)
    check_flag("offline", offline)
    if (folder := local_folder(name)) is not None:
        return folder
    if _is_path(str(name), Path.is_file):
        raise CheckpointError(f"{str(name)!r} is a file; give the checkpoint folder it is in")
    if not HUB_ID.fullmatch(str(name)) or str(name).startswith("."):
        near = suggest_name(str(name)) or RELEASED[1]
        raise CheckpointError(
            f"no folder {str(name)[:MAX_SHOWN_CHARS]!r}; give a checkpoint folder or a model such "
            f"as {near}"
        )
    found = download(
        str(name), revision=revision, cache_dir=cache_dir, offline=offline, token=token
    )
    _check_whole(str(name), found, offline, is_codec)
    return found


def _check_source(revision: object, cache_dir: object) -> None:
    """Raise CheckpointError for arguments of `find_folder` that have a wrong type."""
    if not isinstance(revision, (str, NoneType)):
        raise CheckpointError(f"revision must be a branch, tag or commit, not {shown(revision)}")
    if cache_dir is not None:
        as_path("cache_dir", cache_dir, CheckpointError)


def local_folder(name: str | Path | None) -> Path | None:
    """The folder of a local model or of the embedded voice. None for other names.

    Raises CheckpointError for other types.
    """
    if not isinstance(name, (str, Path, NoneType)):
        raise CheckpointError(f"a model is a folder or a hub id, not {shown(name)}")
    if name is None:
        return EMBEDDED
    if name != "" and _is_path(name, Path.is_dir):
        return Path(name).expanduser()
    return EMBEDDED if name == EMBEDDED.name else None


def _is_path(name: str | Path, check: Callable[[Path], bool]) -> bool:
    try:
        return check(Path(name).expanduser())
    except (OSError, RuntimeError):  # too long for a path, or `~name` of an unknown user
        return False


def weight_bytes(folder: Path) -> int:
    """Size of all weights of a checkpoint on disk."""
    paths = [path for part in (folder, folder / CODEC) for path in shard_paths(part)]
    return sum(path.stat().st_size for path in paths if path.is_file())


def model_id(folder: Path) -> str:
    """The hub id of a folder in the download cache, else the folder's name without its path."""
    if folder == EMBEDDED:
        return f"vivace/{EMBEDDED.name}"
    cache = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cache.startswith(CACHE_PREFIX):
        return cache.removeprefix(CACHE_PREFIX).replace("--", "/")
    return folder.resolve().name


def cached_share(model: ModelEntry, *, cache_dir: str | Path | None = None) -> float:
    """How much of a model is in the download cache: 0 to 1. 1 means that it loads offline."""
    try:
        find_folder(model.name, revision=None, cache_dir=cache_dir, offline=True)
    except CheckpointError:
        blobs = (model_cache(model.name, cache_dir) / "blobs").glob("*")
        num_bytes = sum(path.stat().st_size for path in blobs if path.suffix != ".lock")
        return min(num_bytes / model.num_bytes, 0.99)
    return 1.0


def codec_folder(folder: Path) -> Path:
    """The codec's folder: `speech_tokenizer` inside a checkpoint, or the folder itself."""
    return folder / CODEC if (folder / CODEC).is_dir() else folder


def missing_files(folder: Path, *, is_codec: bool = False) -> list[str]:
    """The files that loading needs and that a checkpoint folder does not have."""
    codec = codec_folder(folder) if is_codec else folder / CODEC
    needed = [codec / "config.json", *shard_paths(codec)]
    if not is_codec:
        needed += [*(folder / file for file in NEEDED), *shard_paths(folder)]
    return [str(path.relative_to(folder)) for path in needed if not path.is_file()]


def _check_whole(name: str, folder: Path, offline: bool, is_codec: bool) -> None:
    if missing := missing_files(folder, is_codec=is_codec):
        hint = "load it once with a connection" if offline else "is it a Qwen3-TTS checkpoint?"
        raise CheckpointError(
            f"the download of {name} in {folder} lacks {', '.join(missing)}; {hint}"
        )


def shard_paths(folder: Path) -> Iterator[Path]:
    """Paths of the files with a folder's tensors. The files may be missing."""
    index = folder / f"{WEIGHTS}.index.json"
    if (folder / WEIGHTS).exists() or not index.exists():
        yield folder / WEIGHTS
        return
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise CheckpointError(f"{index}: no weight_map")
    for name in weight_map.values():
        if not isinstance(name, str) or not SHARD_NAME.fullmatch(name):
            raise CheckpointError(f"{index}: {name!r} is not the name of a file in this folder")
    for name in sorted(set(weight_map.values())):
        yield folder / name
