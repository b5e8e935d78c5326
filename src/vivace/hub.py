"""Finds a model's folder: the embedded voice, a local folder, or a download from the hub.

Only weights and text files are downloaded, never pickles or code. An incomplete download is an
error; the log names the commit.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vivace.checkpoint_files import read_json
from vivace.errors import CheckpointError

log = logging.getLogger(__name__)

RELEASED = (
    "Qwen/Qwen3-TTS-12Hz-0.6B-Base",
    "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
    "Qwen/Qwen3-TTS-12Hz-1.7B-Base",
    "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
)
EMBEDDED = Path(__file__).parent / "assets" / "mini"  # the embedded voice
WEIGHTS = "model.safetensors"
NEEDED = ("config.json", "vocab.json", "merges.txt", "tokenizer_config.json")
CODEC = "speech_tokenizer"  # the codec's folder inside a checkpoint folder
KINDS = ["*.json", "*.txt", "*.safetensors"]
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
    if name is None:
        return EMBEDDED
    try:
        folder = Path(name).expanduser()
        is_file, is_folder = folder.is_file(), folder.is_dir() and name != ""
    except (OSError, RuntimeError):  # too long for a path, or `~name` of an unknown user
        is_file = is_folder = False
    if is_folder:
        return folder
    if name == EMBEDDED.name:
        return EMBEDDED
    if is_file:
        raise CheckpointError(f"{str(name)!r} is a file; give the checkpoint folder it is in")
    if not HUB_ID.fullmatch(str(name)) or str(name).startswith("."):
        raise CheckpointError(
            f"no folder {str(name)!r}; give a checkpoint folder or a hub id such as {RELEASED[1]}"
        )
    found = _download(str(name), revision, cache_dir, offline, token)
    _check_whole(str(name), found, offline, is_codec)
    return found


def _download(
    name: str,
    revision: str | None,
    cache_dir: str | Path | None,
    offline: bool,
    token: str | bool | None,
) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    options: dict[str, Any] = {} if token is None else {"token": token}
    try:
        folder = Path(
            snapshot_download(
                name,
                revision=revision,
                cache_dir=cache_dir,
                local_files_only=offline,
                allow_patterns=KINDS,
                **options,
            )
        )
    except LocalEntryNotFoundError as error:
        hint = "it was asked for offline" if offline else "the hub could not be reached"
        raise CheckpointError(
            f"{name} is not a local folder, is not in the download cache and {hint}; "
            "download it once with a connection"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"no folder or hub model is named {name!r}; "
            f"the released ones are: {', '.join(RELEASED)}"
        ) from error
    except Exception as error:  # the hub client raises many types; all mean that there are no files
        raise CheckpointError(f"{name} could not be downloaded: {error}") from error
    # A snapshot's folder is named after its commit. `revision` accepts that name.
    log.info("%s is commit %s in %s", name, folder.name, folder)
    return folder


def codec_folder(folder: Path) -> Path:
    """The codec's folder: `speech_tokenizer` inside a checkpoint, or the folder itself."""
    return folder / CODEC if (folder / CODEC).is_dir() else folder


def _check_whole(name: str, folder: Path, offline: bool, is_codec: bool) -> None:
    """Raise CheckpointError if a file is missing that loading needs."""
    codec = codec_folder(folder) if is_codec else folder / CODEC
    needed = [codec / "config.json", *shard_paths(codec)]
    if not is_codec:
        needed += [*(folder / file for file in NEEDED), *shard_paths(folder)]
    if missing := [str(path.relative_to(folder)) for path in needed if not path.is_file()]:
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
