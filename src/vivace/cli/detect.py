"""`vivace detect FILE...`: reports whether audio files or stdin are marked as AI-generated."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vivace.cli.light import import_torch
from vivace.cli.messages import print_error
from vivace.cli.streams import STDIN, open_stdin, print_json, print_stdout, print_table, printable
from vivace.errors import AudioError, RequestError

if TYPE_CHECKING:
    from vivace.mark.detect import Detection

UNMARKED, UNREADABLE = 1, 2  # exit codes


def detect(arguments: argparse.Namespace) -> int:
    import_torch()
    from vivace.mark.detect import Detector

    detector = Detector()
    code = 0
    for path in arguments.files:
        name = "stdin" if path == STDIN else path
        try:
            if path == STDIN:
                found = detector.detect_stream(open_stdin("a file"), name)
            else:
                found = detector.detect(path)
        except (AudioError, RequestError) as error:
            print_error(error, is_json=arguments.json, file=name)
            code = UNREADABLE
            continue
        if not found.is_marked:
            code = max(code, UNMARKED)
        if arguments.json:
            print_json(found.as_json())
        else:
            _print(found)
    return code


def _print(found: Detection) -> None:
    print_stdout(printable(found.path))
    watermark = "none" if found.watermark is None else f"confidence {found.watermark:.2f}"
    rows = {
        "AI-generated": "yes" if found.is_marked else "no mark was found",
        "metadata": _facts(found.metadata),
        "watermark": watermark,
        "manifest": _facts(found.manifest),
    }
    rows |= {name: f"not checked: {reason}" for name, reason in found.unchecked.items()}
    print_table(((name, printable(value)) for name, value in rows.items()), width=14)


def _facts(facts: Mapping[str, str] | None) -> str:
    if facts is None:
        return "none"
    return "; ".join(f"{name}: {value}" for name, value in facts.items()) or "yes"
