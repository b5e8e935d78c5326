"""Write the text of the first speaker: dev sentences, then training and template lines, shuffled.

A line break or a tab inside a line is written as `\\n` or `\\t`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from recipes.mini_voice.settings import load_settings, parser
from recipes.mini_voice.templates import template_lines

SPEAKER = 1_000_000  # offset between the line numbers of two speakers


def load_lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.replace("\\n", "\n").replace("\\t", "\t") for line in lines]


def save_lines(path: Path, lines: Sequence[str]) -> None:
    escaped = [line.replace("\n", "\\n").replace("\t", "\\t") for line in lines]
    path.write_text("\n".join(escaped) + "\n", encoding="utf-8")


def all_lines(data: SimpleNamespace) -> list[str]:
    """All lines, then the rare ones if they exist. A line's number is its index."""
    paths = [Path(data.lines), Path(data.rare)]
    return [line for path in paths if path.exists() for line in load_lines(path)]


def main() -> None:
    args = parser(__doc__).parse_args()
    data = load_settings(args.smoke, args.set).data
    dev = Path("build/dev.txt").read_text().splitlines()
    train = Path("build/train.txt").read_text().splitlines()
    lines = train + template_lines(data.num_templates)
    random.Random(7).shuffle(lines)
    save_lines(Path(data.lines), dev + lines)
    print(len(dev), "dev,", len(lines), "train lines")


if __name__ == "__main__":
    main()
