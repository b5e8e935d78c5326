"""Learn the text tokenizer: a byte-level BPE in the file format of the released checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from recipes.mini_voice.lines import load_lines
from recipes.mini_voice.released_layout import tokenizer_config
from recipes.mini_voice.settings import load_settings, parser
from vivace.text.tokenizer import QWEN2_PATTERN, TextTokenizer


def learn(lines: list[str], num_merges: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges. Merges of the lowest rank make `assistant` one token."""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=256 + num_merges, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(lines, trainer)
    merges = [tuple(pair) for pair in json.loads(bpe.to_str())["model"]["merges"]]
    vocab = {token: index for index, token in enumerate(alphabet)}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    pieces = bpe.encode("assistant").tokens
    while len(pieces) > 1:
        merges.append((pieces[0], pieces[1]))
        pieces = [pieces[0] + pieces[1], *pieces[2:]]
        vocab.setdefault(pieces[0], len(vocab))
    return vocab, merges


def write(folder: Path, vocab: dict[str, int], merges: list[tuple[str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False) + "\n")
    text = "".join(f"{left} {right}\n" for left, right in merges)
    (folder / "merges.txt").write_text("#version: 0.2\n" + text)
    config = tokenizer_config(len(vocab))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    args = parser(__doc__).parse_args()
    settings = load_settings(args.smoke, args.set)
    lines = load_lines(Path(settings.data.lines))[settings.data.num_dev :]
    folder = Path(settings.tokenizer.folder)
    write(folder, *learn(lines, settings.tokenizer.num_merges))
    tokenizer = TextTokenizer.from_folder(folder)
    dev = Path("build/dev.txt").read_text().splitlines()
    tokens = sum(len(tokenizer.encode(line)) for line in dev)
    print(tokenizer.vocab_size, "ids;", round(sum(map(len, dev)) / tokens, 2), "characters a token")
    print(
        "role",
        tokenizer.role_ids("assistant"),
        [tokenizer.decode([t]) for t in tokenizer.encode("Hello there, my assistant.")],
    )


if __name__ == "__main__":
    main()
