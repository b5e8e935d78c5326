"""Writes a checkpoint as ONNX graphs with a manifest and the tokenizer's files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vivace.checkpoint import Checkpoint
from vivace.errors import CheckpointError, RequestError, install_command
from vivace.quantize import new_folder

if TYPE_CHECKING:
    from vivace.export.graph import StoredWeights

MAX_BYTES = 400_000_000  # of the checkpoint's weights; browsers have little memory
MANIFEST = "manifest.json"
TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")


def export_onnx(checkpoint: Checkpoint, folder: Path, weights: StoredWeights = "int8") -> None:
    """Write the graphs of a checkpoint to a new or empty folder.

    Raises RequestError for a large or quantized checkpoint, a missing extra or a folder with files.
    Raises CheckpointError for invalid tensors or a folder that cannot be written.
    """
    _check(checkpoint)
    try:
        from vivace.export import codec, frame, manifest
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("vivace"):
            raise
        raise RequestError(
            f"the export needs {error.name}, which is not installed: {install_command('onnx')}"
        ) from error
    try:
        with new_folder(folder) as unfinished:
            tokenizer = checkpoint.load_tokenizer()
            cpu = torch.device("cpu")
            model = checkpoint.load_plain_model(cpu, torch.float32)
            graphs = {
                "frame.onnx": frame.build_frame_graph(model, weights),
                "codec.onnx": codec.build_codec_graph(checkpoint.load_codec(cpu), weights),
            }
            for name, graph in graphs.items():
                (unfinished / name).write_bytes(graph.SerializeToString())
            _copy_tokenizer(checkpoint.folder, unfinished)
            facts = manifest.describe(
                checkpoint, tokenizer, weights, graphs, frame.first_codes(model)
            )
            _write_manifest(unfinished, facts, manifest.file_facts)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error.strerror or error}") from error
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
        raise CheckpointError(f"{checkpoint.folder}: {error}") from error


def _check(checkpoint: Checkpoint) -> None:
    stored = checkpoint.config.quantization_config
    if stored is not None:
        raise RequestError(
            f"{checkpoint.folder} is quantized to {stored.weights}; export the original"
        )
    if checkpoint.num_bytes > MAX_BYTES:
        raise RequestError(
            f"{checkpoint.folder} has {checkpoint.num_bytes / 1e6:,.0f} MB of weights; the export "
            f"is for checkpoints of at most {MAX_BYTES / 1e6:,.0f} MB, such as the embedded voice"
        )


def _copy_tokenizer(source: Path, target: Path) -> None:
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _write_manifest(folder: Path, facts: dict[str, Any], describe: Any) -> None:
    facts["files"] = {path.name: describe(path) for path in sorted(folder.iterdir())}
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
