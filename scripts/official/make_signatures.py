"""Write tests/golden/signatures.json: names, kinds and defaults of the peers' public methods.

Run in the environment of README.md, with faster-qwen3-tts 0.5.4 installed without its dependencies.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

from environment import ROOT, qwen_tts
from faster_qwen3_tts import FasterQwen3TTS

CLASSES = (qwen_tts.Qwen3TTSModel, qwen_tts.Qwen3TTSTokenizer, FasterQwen3TTS)


def describe(cls: type) -> dict[str, list[list[str]]]:
    names = [name for name in vars(cls) if not name.startswith("_")]
    methods = {name: getattr(cls, name) for name in names if callable(getattr(cls, name))}
    return {name: parameters(method) for name, method in sorted(methods.items())}


def parameters(method: Any) -> list[list[str]]:
    """[name, kind, default as Python writes it or "" where there is none]."""
    found = inspect.signature(method).parameters.values()
    return [
        [one.name, one.kind.name, "" if one.default is one.empty else repr(one.default)]
        for one in found
        if one.name != "self"
    ]


if __name__ == "__main__":
    table = {cls.__name__: describe(cls) for cls in CLASSES}
    lines = [
        f' "{cls}": {{\n'
        + ",\n".join(f'  "{name}": {json.dumps(value)}' for name, value in methods.items())
        + "\n }"
        for cls, methods in table.items()
    ]
    path = ROOT / "tests" / "golden" / "signatures.json"
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
