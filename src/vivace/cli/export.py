"""`vivace export`: writes a checkpoint as ONNX graphs."""

from __future__ import annotations

import argparse
from pathlib import Path

from vivace.cli.progress import ProgressLine
from vivace.cli.request import find_checkpoint
from vivace.cli.streams import print_stdout, printable
from vivace.export.write import export_onnx


def export(arguments: argparse.Namespace) -> None:
    """Export a model and print the folder."""
    output = Path(arguments.output)
    with ProgressLine() as line:
        line.show(f"looking for {printable(arguments.name)}")
        checkpoint = find_checkpoint(arguments.name, arguments)
        line.show(f"writing {arguments.weights} graphs")
        export_onnx(checkpoint, output, arguments.weights)
    print_stdout(output)
