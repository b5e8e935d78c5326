"""The code predictor's frame as one launch: see predictor.cu."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_uint32, c_uint64
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from vivace.backends.cuda_graph.launch import Drawn, Knobs
from vivace.backends.megakernel import driver
from vivace.backends.megakernel.nvrtc import compile_source
from vivace.errors import BackendUnavailableError
from vivace.model.layers import Block, Linear
from vivace.model.talker import Qwen3TTS

MAX_BATCH = 8
THREADS = 288
CHUNK_BYTES = 8 * (2 * 1024 + 16)
MIN_CHUNKS = 4
SOURCES = ("common.cuh", "predictor.cu")


class Request(ctypes.Structure):
    """As in predictor.cu."""

    _fields_ = (
        *(
            (name, c_uint64)
            for name in (
                "weights", "x", "noise", "temperature", "is_greedy", "last", "top_p",
                "codes", "is_finite", "code_sum", "forced", "logits", "exchange", "control",
            )
        ),
        ("noise_pitch", c_int64),
        ("batch", c_uint32),
        ("shared_bytes", c_uint32),
    )  # fmt: skip


class PredictorKernel:
    def __init__(self, model: Qwen3TTS, *, kept_layers: int = 1) -> None:
        config, predictor = model.config.talker_config, model.talker.code_predictor
        device = model.device
        self._sizes = sizes = _sizes(model, kept_layers)
        properties = torch.cuda.get_device_properties(device)
        self._num_blocks = properties.multi_processor_count
        self._most_shared = properties.shared_memory_per_block_optin
        code = compile_source(source(), f"sm_{properties.major}{properties.minor}", options(sizes))
        self._module = driver.Module(code)
        self._function = self._module.function("predictor_kernel")
        shared, exchange, weights = self._module.numbers("layout")
        self._shared_bytes = shared
        rope = predictor.rope.span(0, config.num_code_groups, model.talker.codec_head.weight)
        self._kept = [part.contiguous() for part in rope]
        pointers = [tensor.data_ptr() for tensor in self._tensors(model)]
        assert len(pointers) * 8 == weights
        self._weights = torch.tensor(pointers, dtype=torch.int64, device=device)
        self._exchange = torch.zeros(2 * exchange, dtype=torch.uint8, device=device)
        self._control = torch.zeros(4, dtype=torch.int32, device=device)
        driver.allow_shared(self._function, self._most_shared)

    def _tensors(self, model: Qwen3TTS) -> list[Tensor]:
        """In the order of predictor.cu's Weights."""
        predictor = model.talker.code_predictor
        tensors: list[Tensor] = []
        for layer in predictor.model.layers:
            block = cast("Block", layer)
            attention = block.self_attn
            assert attention.q_norm is not None
            assert attention.k_norm is not None
            tensors += [
                block.input_layernorm.weight, attention.qkv_weight, attention.q_norm.weight,
                attention.k_norm.weight, attention.o_proj.weight,
                block.post_attention_layernorm.weight, block.mlp.gate_up_weight,
                block.mlp.down_proj.weight,
            ]  # fmt: skip
        tensors += [predictor.model.norm.weight, *self._kept]
        projection = predictor.small_to_mtp_projection
        if isinstance(projection, Linear):
            tensors += [projection.weight, cast("Tensor", projection.bias)]
        else:
            tensors += [predictor.model.norm.weight] * 2  # not read
        tensors += [cast("Linear", head).weight for head in predictor.lm_head]
        tensors += [table.weight for table in model.talker.code_tables[1:]]
        for tensor in tensors:
            assert tensor.is_contiguous()
            assert tensor.dtype == torch.bfloat16
        return tensors

    @property
    def num_faults(self) -> int:
        """How many blocks gave up waiting for another."""
        return int(self._control[1])

    def run(
        self,
        x: Tensor,  # [B, 2, hidden]: the talker's state and the first code's vector
        noise: Tensor,  # [B, codes] from codebook 1 on, rows of any stride
        knobs: Knobs,
        top_p: Tensor,  # float32 [B]
        drawn: Drawn,  # its first codebook is there
        *,
        forced: Tensor | None = None,  # int64 [B, groups]: codes to go on from instead of the drawn
        logits: Tensor | None = None,  # bfloat16 [B, groups - 1, codes]: takes all logits
    ) -> None:
        """Draw codebooks 1 and up of a frame."""
        batch = len(x)
        self._check_room(batch)
        request = Request(
            weights=self._weights.data_ptr(),
            x=x.data_ptr(),
            noise=noise.data_ptr(),
            temperature=knobs.temperature.data_ptr(),
            is_greedy=knobs.is_greedy.data_ptr(),
            last=knobs.last.data_ptr(),
            top_p=top_p.data_ptr(),
            codes=drawn.codes.data_ptr(),
            is_finite=drawn.is_finite.data_ptr(),
            code_sum=drawn.code_sum.data_ptr(),
            forced=0 if forced is None else forced.data_ptr(),
            logits=0 if logits is None else logits.data_ptr(),
            exchange=self._exchange.data_ptr(),
            control=self._control.data_ptr(),
            noise_pitch=noise.stride(0),
            batch=batch,
            shared_bytes=self._most_shared,
        )
        driver.launch_together(
            self._function, self._num_blocks, THREADS, self._most_shared, request
        )

    def _fixed_bytes(self, batch: int) -> int:
        """Shared memory beside the ring."""
        sizes = self._sizes
        units = -(-batch * sizes["KV_HEADS"] // self._num_blocks)
        keys = units * sizes["LAYERS"] * 2 * sizes["BOOKS"] * (2 * sizes["HEAD_DIM"] + 16)
        widest = max(sizes["INTER"], sizes["HEADS"] * sizes["HEAD_DIM"], sizes["WIDTH"])
        most_rows = 2 * batch if 2 * batch <= MAX_BATCH else batch  # of a frame's first sweep
        rows = most_rows * (2 * sizes["HIDDEN"] + 16 + 2 * widest + 16)
        return self._shared_bytes + keys + rows

    def _check_room(self, batch: int) -> None:
        room = self._most_shared - self._fixed_bytes(batch)
        if room < MIN_CHUNKS * CHUNK_BYTES:
            raise BackendUnavailableError(f"too little shared memory for a batch of {batch}")


def source() -> str:
    folder = Path(__file__).parent
    return "".join((folder / name).read_text() for name in SOURCES)


def options(sizes: dict[str, int | str]) -> list[str]:
    return [f"-D{name}={value}" for name, value in sizes.items()]


def _sizes(model: Qwen3TTS, kept_layers: int) -> dict[str, int]:
    talker = model.config.talker_config
    config = talker.code_predictor_config
    return {
        "HIDDEN": config.hidden_size,
        "INTER": config.intermediate_size,
        "HEADS": config.num_attention_heads,
        "KV_HEADS": config.num_key_value_heads,
        "HEAD_DIM": config.head_dim,
        "LAYERS": config.num_hidden_layers,
        "BOOKS": talker.num_code_groups,
        "VOCAB": config.vocab_size,
        "WIDTH": talker.hidden_size,
        "PROJECTS": int(talker.has_projection),
        "EPS": f"{config.rms_norm_eps!r}f",
        "SOFTMAX_SCALE": f"{config.head_dim**-0.5!r}f",
        "KEPT_LAYERS": kept_layers,
    }
