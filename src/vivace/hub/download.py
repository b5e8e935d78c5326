"""Downloads models from the Hugging Face Hub into its cache.

Only weights and text files are downloaded, never pickles or code. An interrupted download of
weights continues where it stopped. Current versions of huggingface_hub discard unfinished files,
so the weights are downloaded here, to the paths where huggingface_hub expects them.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivace.checkpoint_files import WEIGHTS
from vivace.errors import CheckpointError
from vivace.hub.catalogue import RELEASED, suggest_name

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

log = logging.getLogger(__name__)

KINDS = ["*.json", "*.txt", "*.safetensors"]
INFO_TIMEOUT_S = 10.0
SPARE_BYTES = 64 << 20  # stay free after a download
HASH_BLOCK_BYTES = 8 << 20
CACHE_PREFIX = "models--"  # of a model's folder in the cache


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """The folder of downloads: `cache_dir`, or that of HF_HUB_CACHE or HF_HOME."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(cache_dir or HF_HUB_CACHE).expanduser()


def model_cache(name: str, cache_dir: str | Path | None = None) -> Path:
    """The folder of one model in the cache. It may not exist."""
    return cache_folder(cache_dir) / f"{CACHE_PREFIX}{name.replace('/', '--')}"


def download(
    name: str,
    *,
    revision: str | None,
    cache_dir: str | Path | None,
    offline: bool,
    token: str | bool | None,
) -> Path:
    """Download a model, or with `offline` find it in the cache. Returns the snapshot's folder."""
    from huggingface_hub import snapshot_download

    options: dict[str, Any] = {} if token is None else {"token": token}
    try:
        if not offline:
            _fetch_weights(name, revision, cache_dir, token)
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
    except CheckpointError:
        raise
    except Exception as error:  # the hub client raises many types; all mean that there are no files
        raise CheckpointError(_explain(name, cache_dir, error, offline=offline)) from error
    # A snapshot's folder is named after its commit. `revision` accepts that name.
    log.info("%s is commit %s in %s", name, folder.name, folder)
    return folder


def _explain(name: str, cache_dir: str | Path | None, error: Exception, *, offline: bool) -> str:
    """Why a model was not downloaded, and what to do."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    if isinstance(error, LocalEntryNotFoundError):
        reason = "offline mode is on; download it once with a connection"
        if not offline:
            reason = "the hub could not be reached; check the connection (HTTPS_PROXY, HF_ENDPOINT)"
        return f"{name} is not a local folder, is not in the download cache and {reason}"
    if isinstance(error, GatedRepoError):
        return f"{name} is restricted; request access on its page, then run `hf auth login`"
    if isinstance(error, RepositoryNotFoundError):
        return describe_unknown(name)
    return _describe_failure(name, cache_dir, error)


def describe_unknown(name: str) -> str:
    near = suggest_name(name)
    hint = f"did you mean {near}? " if near else ""
    return (
        f"no folder or hub model is named {name!r}; {hint}"
        f"the released ones are: {', '.join(RELEASED)}"
    )


def _describe_failure(name: str, cache_dir: str | Path | None, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"{name} could not be downloaded: the disk of {cache_folder(cache_dir)} is full; free "
            "some space or set HF_HOME to a folder on another disk, then run the command again"
        )
    is_partial = any(model_cache(name, cache_dir).rglob("*.incomplete"))
    hint = "; run the command again to continue the download" if is_partial else ""
    return f"{name} could not be downloaded: {error}{hint}"


def _fetch_weights(
    name: str, revision: str | None, cache_dir: str | Path | None, token: str | bool | None
) -> None:
    """Download the weights that are not in the cache.

    Does nothing if the hub cannot be reached or rejects the name: `snapshot_download` reports that.
    """
    from huggingface_hub import HfApi, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined, unused-ignore]

    if isinstance(try_to_load_from_cache(name, WEIGHTS, cache_dir, revision), str):
        return
    try:
        info = HfApi(token=token).model_info(
            name, revision=revision, files_metadata=True, timeout=INFO_TIMEOUT_S
        )
    except Exception as error:
        log.debug("no list of the files of %s: %s", name, error)
        return
    folder, headers = model_cache(name, cache_dir), build_hf_headers(token=token)
    missing = list(_missing_weights(folder, info))
    _check_space(name, folder, missing)
    for file in missing:
        url = hf_hub_url(name, file.path, revision=info.sha)
        lock = folder.parent / ".locks" / folder.name / f"{file.sha256}.lock"  # huggingface_hub's
        _fetch(url, file, lock, headers)


@dataclass(frozen=True, slots=True)
class _File:
    """A file of weights that is not in the cache."""

    path: str  # in the repository
    num_bytes: int
    sha256: str
    target: Path  # where huggingface_hub expects it

    @property
    def partial(self) -> Path:
        return self.target.with_name(f"{self.target.name}.incomplete")

    @property
    def num_done(self) -> int:
        return self.partial.stat().st_size if self.partial.exists() else 0


def _missing_weights(folder: Path, info: ModelInfo) -> Iterator[_File]:
    from huggingface_hub.file_download import are_symlinks_supported

    folder.mkdir(parents=True, exist_ok=True)
    has_links = are_symlinks_supported(folder)
    for file in info.siblings or ():
        if file.lfs is None or not file.rfilename.endswith(".safetensors"):
            continue
        blob = folder / "blobs" / file.lfs.sha256
        target = blob if has_links else folder / "snapshots" / str(info.sha) / file.rfilename
        if not target.exists():
            yield _File(file.rfilename, file.lfs.size, file.lfs.sha256, target)


def _check_space(name: str, folder: Path, missing: Sequence[_File]) -> None:
    num_bytes = sum(max(0, file.num_bytes - file.num_done) for file in missing)
    num_free = shutil.disk_usage(folder).free
    if num_bytes + SPARE_BYTES > num_free:
        raise CheckpointError(
            f"{name} needs {num_bytes / 1e9:.1f} GB more in {folder.parent}, and the disk has "
            f"{num_free / 1e9:.1f} GB free; free some space or set HF_HOME to another disk"
        )


def _fetch(url: str, file: _File, lock: Path, headers: dict[str, str]) -> None:
    """Download one file with a progress bar. Continues an unfinished download."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined, unused-ignore]

    for path in (file.target, lock):
        path.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if file.target.exists():  # another process has downloaded it
            return
        if file.num_done > file.num_bytes:
            file.partial.unlink()
        num_done = file.num_done
        with file.partial.open("ab") as content:
            http_get(
                url,
                content,
                resume_size=num_done,
                headers=headers,
                expected_size=file.num_bytes,
                displayed_filename=file.path,
            )
        if num_done and _sha256(file.partial) != file.sha256:
            file.partial.unlink()
            raise OSError(f"{file.path} was corrupt and is deleted")
        os.replace(file.partial, file.target)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
