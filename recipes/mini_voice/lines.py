"""Write the teacher's text: dev sentences, then training and template lines, shuffled."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

from recipes.mini_voice.settings import load_settings, parser
from recipes.mini_voice.templates import template_lines

SPEAKER = 1_000_000  # offset between the line numbers of two speakers


def all_lines(data: SimpleNamespace) -> list[str]:
    """All lines, then the rare ones if they exist. A line's number is its index."""
    paths = [Path(data.lines), Path(data.rare)]
    return [line for path in paths if path.exists() for line in path.read_text().splitlines()]


def main() -> None:
    args = parser(__doc__).parse_args()
    data = load_settings(args.smoke, args.set).data
    dev = Path("build/dev.txt").read_text().splitlines()
    train = Path("build/train.txt").read_text().splitlines()
    lines = train + template_lines(data.num_templates)
    random.Random(7).shuffle(lines)
    Path(data.lines).write_text("\n".join(dev + lines) + "\n")
    print(len(dev), "dev,", len(lines), "train lines")


if __name__ == "__main__":
    main()
