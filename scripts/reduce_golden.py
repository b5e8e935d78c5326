"""Reduce the golden values of the released checkpoints to src/vivace/conformance/released.npz.

    python scripts/reduce_golden.py released_weights.npz

The input has the groups `custom_voice`, `xvector`, `in_context`, `probe`, `codec` and
`codec_window`. The inputs of the talker probe are not stored: they are random numbers from a fixed
seed. Of 83 codec frames, the last 12 are kept, with every fourth column. The codes in context were
made with the reference codes of the CUDA encoder, so these are kept and not those of the CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.conformance.golden import (
    SHIPPED,
    GoldenCodec,
    GoldenProbe,
    GoldenRequest,
    GoldenSet,
    probe_inputs,
    save_golden,
)

NCNN = "mingshi2333/Qwen3-TTS-ncnn, float32"
NATIVE = "luka-loehr/qwen3-tts-native, float32"
CLONED_TEXT = "你好，这是 ncnn 移植的对齐测试。"
REF_TEXT = (
    "Okay. Yeah. I resent you. I love you. I respect you. "
    "But you know what? You blew it! And thanks to you."
)
SMALL = {
    "talker.hidden_size": 1024,
    "talker.num_hidden_layers": 28,
    "talker.vocab_size": 3072,
    "talker.text_vocab_size": 151_936,
    "talker.num_code_groups": 16,
    "predictor.hidden_size": 1024,
    "predictor.num_hidden_layers": 5,
}
CODEC = {
    "codec.codebook_size": 2048,
    "codec.num_quantizers": 16,
    "codec.latent_dim": 1024,
    "codec.decoder_dim": 1536,
    "codec.num_hidden_layers": 8,
    "codec.sliding_window": 72,
}
PROBE_ROWS = [0, 5, 9]
NUM_WINDOW_FRAMES, COLUMN_STRIDE = 12, 4

Values = dict[str, NDArray[Any]]


def main() -> None:
    with np.load(Path(sys.argv[1])) as file:
        values: Values = {name: file[name] for name in file.files}
    save_golden(make_sets(values), SHIPPED[0], replace=True)


def make_sets(values: Values) -> list[GoldenSet]:
    base = GoldenSet(
        name="0.6B-Base",
        source=NCNN,
        kind="base",
        dimensions=SMALL,
        requests=[make_xvector(values), make_in_context(values)],
        probe=make_probe(values),
    )
    custom = GoldenSet(
        name="0.6B-CustomVoice",
        source=NCNN,
        kind="custom_voice",
        dimensions=SMALL,
        requests=[make_custom_voice(values)],
    )
    codec = GoldenSet(
        name="12 Hz codec", source=NATIVE, kind=None, dimensions=CODEC, codecs=make_codecs(values)
    )
    return [base, custom, codec]


def make_xvector(values: Values) -> GoldenRequest:
    return GoldenRequest(
        name="x-vector",
        text=CLONED_TEXT,
        language="chinese",
        layout="streamed",
        repetition_penalty=1.05,
        max_frames=511,
        has_end=True,
        text_ids=values["xvector/text_ids"].astype(np.int64),
        codes=values["xvector/codes"].astype(np.int64),
        speaker=values["xvector/speaker"],
    )


def make_in_context(values: Values) -> GoldenRequest:
    """A runaway: the speech is cut at 511 frames."""
    return GoldenRequest(
        name="in context",
        text=CLONED_TEXT,
        language="chinese",
        layout="streamed",
        repetition_penalty=1.05,
        max_frames=511,
        has_end=False,
        text_ids=values["in_context/text_ids"].astype(np.int64),
        codes=values["in_context/codes"].astype(np.int64),
        speaker=values["in_context/speaker"],
        ref_text=REF_TEXT,
        ref_ids=values["in_context/ref_ids"].astype(np.int64),
        ref_codes=values["in_context/ref_codes_cuda"].astype(np.int64),
    )


def make_custom_voice(values: Values) -> GoldenRequest:
    return GoldenRequest(
        name="serena",
        text="你好，这是内置音色的对齐测试。",
        language="chinese",
        layout="whole",
        repetition_penalty=1.05,
        max_frames=199,
        has_end=True,
        text_ids=values["custom_voice/text_ids"].astype(np.int64),
        codes=values["custom_voice/codes"].astype(np.int64),
        preset="serena",
    )


def make_probe(values: Values) -> GoldenProbe:
    rows, step = probe_inputs(1024)
    if not np.array_equal(rows, values["probe/talker_in"]):
        raise ValueError("probe/talker_in does not have the numbers of the fixed seed")
    if not np.array_equal(step, values["probe/step_in"]):
        raise ValueError("probe/step_in does not have the numbers of the fixed seed")
    return GoldenProbe(
        text_ids=values["probe/text_ids"].astype(np.int64),
        text_vectors=values["probe/text_vectors"],
        rows=np.array(PROBE_ROWS, np.int64),
        row_states=values["probe/talker_out"][PROBE_ROWS],
        step_state=values["probe/step_out"][0],
    )


def make_codecs(values: Values) -> list[GoldenCodec]:
    short = GoldenCodec(
        name="codec",
        codes=values["codec/codes"].astype(np.int64),
        after_transformer=values["codec/after_transformer"],
        samples=values["codec/samples"],
    )
    window = values["codec_window/after_transformer"][-NUM_WINDOW_FRAMES:, ::COLUMN_STRIDE]
    long = GoldenCodec(
        name="codec, 83 frames",
        codes=values["codec_window/codes"].astype(np.int64),
        after_transformer=np.ascontiguousarray(window),
        column_stride=COLUMN_STRIDE,
    )
    return [short, long]


if __name__ == "__main__":
    main()
