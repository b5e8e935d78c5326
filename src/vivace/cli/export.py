"""`vivace export`: writes a checkpoint as ONNX graphs."""

from __future__ import annotations

import argparse
from pathlib import Path

from vivace.checkpoint import Checkpoint, find_folder
from vivace.cli.progress import ProgressLine
from vivace.cli.streams import print_stdout, printable
from vivace.export.write import export_onnx


def export(arguments: argparse.Namespace) -> None:
    """Export a model and print the folder."""
    output = Path(arguments.output)
    with ProgressLine() as line:
        line.show(f"looking for {printable(arguments.name)}")
        folder = find_folder(
            arguments.name, revision=arguments.revision, cache_dir=None, offline=arguments.offline
        )
        line.show(f"writing {arguments.weights} graphs")
        export_onnx(Checkpoint.open(folder), output, arguments.weights)
    print_stdout(output)
