"""`vivace quantize`: writes a checkpoint with int8 or int4 weights."""

from __future__ import annotations

import argparse
from pathlib import Path

from vivace.cli.progress import ProgressLine
from vivace.cli.request import find_checkpoint
from vivace.cli.streams import print_stdout, printable
from vivace.quantize import quantize_checkpoint


def quantize(arguments: argparse.Namespace) -> None:
    """Quantize a model and print the folder."""
    output = Path(arguments.output)
    with ProgressLine() as line:
        line.show(f"looking for {printable(arguments.name)}")
        checkpoint = find_checkpoint(arguments.name, arguments)

        def show(num_done: int, num_bytes: int) -> None:
            share = num_done / num_bytes
            line.show(f"{arguments.weights}: {share:.0%} of {num_bytes / 1e6:,.0f} MB")

        quantize_checkpoint(checkpoint, output, arguments.weights, show)
    print_stdout(output)
