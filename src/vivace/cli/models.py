"""`vivace models` lists the known models; `vivace download` downloads one."""

from __future__ import annotations

import argparse
from typing import Any

from vivace.cli.progress import ProgressLine
from vivace.cli.streams import print_columns, print_json, print_stdout, printable
from vivace.errors import CheckpointError
from vivace.hub import EMBEDDED, MODELS, ModelEntry, cached_share, find_folder, missing_files

HEADER = ("MODEL", "SIZE", "LICENCE", "IN CACHE", "ABILITIES")


def list_models(arguments: argparse.Namespace) -> None:
    models = [_embedded(), *map(_describe, MODELS)]
    if arguments.json:
        print_json(models, indent=2)
        return
    print_columns([HEADER, *map(_row, models)])


def download(arguments: argparse.Namespace) -> None:
    """Download a model and print its folder. A local folder is only checked."""
    with ProgressLine() as line:
        line.show(f"looking for {printable(arguments.name)}")
        folder = find_folder(
            arguments.name, revision=arguments.revision, cache_dir=None, offline=False
        )
    if missing := missing_files(folder):
        raise CheckpointError(f"the folder {folder} is no model: it lacks {', '.join(missing)}")
    print_stdout(folder)


def _describe(model: ModelEntry) -> dict[str, Any]:
    return {
        "name": model.name,
        "bytes": model.num_bytes,
        "licence": model.licence,
        "abilities": model.abilities,
        "cached": round(cached_share(model), 2),
    }


def _embedded() -> dict[str, Any]:
    num_bytes = sum(path.stat().st_size for path in EMBEDDED.rglob("*") if path.is_file())
    model = ModelEntry(EMBEDDED.name, num_bytes, "2 preset voices, English")
    return {**_describe(model), "cached": 1.0}


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    num_bytes, cached = model["bytes"], model["cached"]
    size = f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
    state = "included" if model["name"] == EMBEDDED.name else _state(cached)
    return model["name"], size, model["licence"], state, model["abilities"]


def _state(cached: float) -> str:
    if cached == 1:
        return "yes"
    return f"{cached:.0%}" if cached else "no"
