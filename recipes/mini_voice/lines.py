"""Write the text the teacher reads: dev sentences, then train and template lines, shuffled."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

from recipes.mini_voice.settings import load_settings, parser
from recipes.mini_voice.templates import template_lines

SPEAKER = 1_000_000  # a line's number as the next speaker reads it is larger by so much


def all_lines(data: SimpleNamespace) -> list[str]:
    """Those of every stage, then the rare ones, if there are: a line's number is its place here."""
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
