"""Reports launches of the CUDA kernels for Hopper GPUs in the form of Triton launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from vivace.backends.cuda_graph.layers.attention import CHUNK, SPAN
from vivace.backends.cuda_graph.layers.attention_cuda import (
    FRAME_KERNELS,
    CudaAttention,
    FrameArguments,
    SlotArguments,
)
from vivace.backends.cuda_graph.layers.product_wgmma import WgmmaProducts, WgmmaTiles
from vivace.model.layers import RMSNorm

Watch = Callable[[str, dict[str, Any], Callable[[], Any]], Any]  # name, arguments, the launch


@contextmanager
def watched_launches(watch: Watch) -> Iterator[None]:
    """Call `watch` for every launch, with arguments named as in the Triton kernel it replaces."""
    multiply, normalise = WgmmaProducts.multiply, WgmmaProducts.add_and_normalise
    attend_frame, attend_slots = CudaAttention.attend_frame, CudaAttention.attend_slots

    def multiply_watched(
        self: WgmmaProducts, cut: WgmmaTiles, x: Tensor, weight: Tensor, out: Tensor
    ) -> None:
        is_gated = out.dim() == 2
        given: dict[str, Any] = {"x": x, "weight": weight, "bias": None, "NORM_ROWS": 0}
        given |= {"out" if is_gated else "parts": out, "IS_GATED": is_gated}
        name = "wgmma_gated" if is_gated else "wgmma_parts"
        watch(name, given, lambda: multiply(self, cut, x, weight, out))

    def normalise_watched(
        self: WgmmaProducts, parts: Tensor, residual: Tensor, norm: RMSNorm, *outputs: Tensor
    ) -> None:
        given: dict[str, Any] = {"parts": parts, "residual": residual, "weight": norm.weight}
        given |= {"eps": norm.eps} | dict(zip(("out", "normed"), outputs, strict=True))
        launch = partial(normalise, self, parts, residual, norm, *outputs)
        watch("add_and_normalise", given, launch)

    def attend_frame_watched(
        self: CudaAttention, tensors: Sequence[Tensor], first: int, num_new: int, eps: float
    ) -> None:
        given = _named(FrameArguments, tensors, eps)
        num_positions = given["keys"].shape[2]
        given |= {"first": first, "NUM_NEW": num_new, "NUM_POSITIONS": num_positions}
        name = FRAME_KERNELS[num_new - 1]
        watch(name, given, lambda: attend_frame(self, tensors, first, num_new, eps))

    def attend_slots_watched(
        self: CudaAttention, tensors: Sequence[Tensor], num_spans: int, layer: int, eps: float
    ) -> None:
        given = _named(SlotArguments, tensors, eps)
        given |= {"NUM_SPANS": num_spans, "SPAN": SPAN, "CHUNK": CHUNK}
        watch("attend_slots", given, lambda: attend_slots(self, tensors, num_spans, layer, eps))

    changed: list[tuple[Any, str, Any]] = [
        (WgmmaProducts, "multiply", multiply_watched),
        (WgmmaProducts, "add_and_normalise", normalise_watched),
        (CudaAttention, "attend_frame", attend_frame_watched),
        (CudaAttention, "attend_slots", attend_slots_watched),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changed]
    for owner, name, function in changed:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _named(kind: Any, tensors: Sequence[Tensor], eps: float) -> dict[str, Any]:
    """The arguments of an attention kernel."""
    names = [name for name, *_ in kind._fields_]
    given: dict[str, Any] = dict(zip(names, tensors, strict=False))
    num_kv, head_dim = given["keys"].shape[1], given["keys"].shape[3]
    group = given["qkv"].shape[1] // head_dim // num_kv - 2
    given |= {"NUM_KV": num_kv, "GROUP": group, "D": head_dim, "eps": eps}
    return given | {"softmax_scale": head_dim**-0.5}
