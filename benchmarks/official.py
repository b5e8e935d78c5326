"""Times the official package: qwen-tts 0.1.1 on transformers 4.57.3, with random weights.

Needs torch, transformers and qwen_tts only. Other packages that qwen_tts imports are replaced by
empty modules if they are not installed.

    python benchmarks/official.py tiny/custom_voice/config.json --frames 20
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

# Imported by qwen_tts, but called only by its 25 Hz codec and its audio file reader.
UNUSED_MODULES = [
    "einops",
    "librosa",
    "librosa.filters",
    "onnxruntime",
    "soundfile",
    "sox",
    "torchaudio",
    "torchaudio.compliance",
    "torchaudio.compliance.kaldi",
]
SAMPLING = {  # generation_config.json of every released checkpoint
    "do_sample": True,
    "top_k": 50,
    "top_p": 1.0,
    "temperature": 0.9,
    "repetition_penalty": 1.05,
    "subtalker_dosample": True,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
    "subtalker_temperature": 0.9,
}


class AbsentModule(ModuleType):
    """Replaces a package that is not installed; every name in it is a function that raises."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*args: object, **kwargs: object) -> None:
            raise ModuleNotFoundError(f"{self.__name__} is not installed, so no {name}")

        return absent


def import_official() -> ModuleType:
    """Import qwen_tts, with empty modules for missing packages that are not needed here."""
    # transformers checks for some of these packages; it must do so before they are replaced.
    importlib.import_module("transformers.generation")
    for name in UNUSED_MODULES:
        try:
            importlib.import_module(name)
        except (ImportError, OSError):  # absent, or its shared library is
            add_absent_module(name)
    return importlib.import_module("qwen_tts")


def add_absent_module(name: str) -> None:
    module = AbsentModule(name)
    module.__path__ = []
    module.__spec__ = ModuleSpec(name, loader=None, is_package=True)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)


def load_official(
    config: dict[str, Any],
    dtype: torch.dtype,
    device: str,
    talker_layers: int | None = None,
    attention: str = "sdpa",
) -> Any:
    """The official talker and predictor of this config.json, with random weights."""
    official = import_official()
    sys.modules["transformers"].utils.logging.set_verbosity_error()
    config = copy.deepcopy(config)
    if talker_layers is not None:
        config["talker_config"]["num_hidden_layers"] = talker_layers
    parsed = official.core.models.Qwen3TTSConfig(**config).talker_config
    talker = sys.modules["qwen_tts.core.models.modeling_qwen3_tts"]
    with torch.device(device):
        return talker.Qwen3TTSTalkerForConditionalGeneration._from_config(
            parsed, dtype=dtype, attn_implementation=attention
        ).eval()


def official_ms_per_frame(
    config: dict[str, Any],
    dtype: torch.dtype,
    device: str,
    frames: int,
    talker_layers: int | None = None,
    *,
    batch_size: int = 1,
    prefill_rows: int = 32,
    repeats: int = 3,
    attention: str = "sdpa",
) -> float:
    """Wall-clock milliseconds per frame of the official loop, prefill excluded.

    The loop is `talker.generate` with the arguments of the official model (sampling, penalty, all
    hidden states). EOS is banned, so that all frames are made.
    """
    talker = load_official(config, dtype, device, talker_layers, attention)
    generate = functools.partial(generate_frames, talker, batch_size, prefill_rows)
    generate(2)  # warm up
    timings = []
    for _ in range(repeats):
        prefill = seconds(lambda: generate(0), device)
        whole = seconds(lambda: generate(frames), device)
        timings.append(1000 * (whole - prefill) / frames)
    return statistics.median(timings)


@torch.inference_mode()
def generate_frames(talker: Any, batch_size: int, prefill_rows: int, num_frames: int) -> None:
    """Run the official loop from random prompt rows; the last token is sampled, not completed."""
    config = talker.config
    weight = talker.codec_head.weight
    rows = torch.randn(batch_size, prefill_rows, config.hidden_size).to(weight)
    banned = range(config.vocab_size - 1024, config.vocab_size)
    result = talker.generate(
        inputs_embeds=rows,
        attention_mask=torch.ones(rows.shape[:2], dtype=torch.long, device=rows.device),
        trailing_text_hidden=rows[:, :1],
        tts_pad_embed=rows[:1, :1],
        max_new_tokens=num_frames + 1,
        min_new_tokens=num_frames + 1,
        eos_token_id=config.codec_eos_token_id,
        suppress_tokens=[token for token in banned if token != config.codec_eos_token_id],
        output_hidden_states=True,
        return_dict_in_generate=True,
        **SAMPLING,
    )
    made = [codes for _, codes in result.hidden_states if codes is not None]
    assert len(made) == num_frames


def seconds(work: Callable[[], None], device: str) -> float:
    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="a config.json, released or not")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--frames", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--talker-layers", type=int, help="default: all layers of the file")
    arguments = parser.parse_args()
    figure = official_ms_per_frame(
        json.loads(arguments.config.read_text()),
        getattr(torch, arguments.dtype),
        arguments.device,
        arguments.frames,
        arguments.talker_layers,
        batch_size=arguments.batch_size,
    )
    print(json.dumps({**vars(arguments), "config": str(arguments.config), "ms_per_frame": figure}))


if __name__ == "__main__":
    main()
