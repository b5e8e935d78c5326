"""Write tests/golden: results of the official package for the tiny checkpoints.

    python scripts/make_tiny_checkpoints.py tiny                # with vivace on the path
    .venv-official/bin/python scripts/official/make_golden.py --checkpoints tiny

Runs in the environment of scripts/official/README.md, on a CPU, in a few minutes. All kinds of
golden files are listed and explained in tests/golden/README.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from cases import CALLS, TEMPLATE_TEXTS, TOKENIZER_TEXTS
from environment import ROOT, load, write_json
from golden_audio import make_codec, make_resample, make_speaker
from golden_bf16 import make_bf16
from golden_codes import make_codes
from golden_embedded import make_embedded
from golden_sampling import make_sampling
from make_tiny_checkpoints import fingerprint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, default=ROOT / "tiny")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "golden")
    parser.add_argument("--only", choices=MAKERS, nargs="*", default=list(MAKERS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for kind in arguments.only:
        MAKERS[kind](arguments.checkpoints, arguments.output)


def make_tokens(checkpoints: Path, output: Path) -> None:
    tts = load(checkpoints / "custom_voice")

    def ids(text: str) -> list[int]:
        [found] = tts.processor(text=text, return_tensors="pt")["input_ids"].long().tolist()
        return list(found)

    template = tts._build_assistant_text
    value = {
        "texts": [{"text": text, "ids": ids(text)} for text in TOKENIZER_TEXTS],
        "templates": [{"text": text, "ids": ids(template(text))} for text in TEMPLATE_TEXTS],
    }
    write_json(output / "tokens", value)


def make_fingerprints(checkpoints: Path, output: Path) -> None:
    """Digests of the weights, so that a test can detect other weights."""
    write_json(output / "checkpoints", {model: fingerprint(checkpoints / model) for model in CALLS})


MAKERS = {
    "checkpoints": make_fingerprints,
    "tokens": make_tokens,
    "codes": make_codes,
    "embedded": make_embedded,
    "sampling": make_sampling,
    "codec": make_codec,
    "resample": make_resample,
    "speaker": make_speaker,
    "bf16": make_bf16,
}

if __name__ == "__main__":
    main()
