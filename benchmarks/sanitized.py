"""Small runs of our kernels for compute-sanitizer; benchmarks/sanitize.sh starts them.

    python benchmarks/sanitized.py megakernel tiny
    python benchmarks/sanitized.py fused tiny small

`tiny` is a folder written by scripts/make_tiny_checkpoints.py. `small` is the smallest run with
every kernel, for racecheck, which is much slower. `memory` and `race` are controls: kernels with an
error that the sanitizer must find. PyTorch's products and convolutions run on the CPU: on the GPU
they make racecheck fail with an internal error.

racecheck 2025.3 reports false races in the megakernel. It does not support that one lane arrives at
an mbarrier for its warp after `__syncwarp`; `elected` is a correct kernel that shows this. It
supports a `bar.sync` of part of a block (`named`), but not together with such mbarriers. `known` is
the megakernel with mbarriers at which every thread arrives.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from cuda_kernels import watched_launches
from shapes import load_configs, random_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from vivace.backends.base import CodecPrecision
from vivace.backends.cuda import driver
from vivace.backends.cuda.nvrtc import compile_source
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.codec.checks import random_unit
from vivace.backends.cuda_graph.codec.operands import ColumnParameters, Outputs
from vivace.backends.cuda_graph.codec.product import SHAPES, WideProduct, load_products
from vivace.backends.cuda_graph.codec.unit import MAX_DILATION, TAPS, WideUnit, load_kernels
from vivace.backends.cuda_graph.layers import product_wgmma
from vivace.backends.cuda_graph.layers.attention_cuda import FRAME_KERNELS
from vivace.backends.cuda_graph.layers.product_wgmma import GATED, SPLIT, WgmmaProducts
from vivace.backends.cuda_graph.layers.tiles import NUM_PARTS
from vivace.backends.megakernel import kernel
from vivace.backends.megakernel.backend import MegakernelBackend
from vivace.backends.megakernel.kernel import architecture_of
from vivace.checkpoint import Checkpoint
from vivace.model.codec import Codec
from vivace.model.config_file import parse_model_config
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt, build_prompt
from vivace.speech import SamplingParams

CUDA = torch.device("cuda")
CONTROL = """
struct Request { int* numbers; unsigned long long first; };
extern "C" __global__ void control_kernel(Request given) {
    __shared__ int shared[128];
    shared[threadIdx.x] = given.numbers[threadIdx.x];
    if (given.first) __syncthreads();
    given.numbers[given.first + threadIdx.x] = shared[127 - threadIdx.x];
}
"""

NAMED = """
struct Request { int* numbers; unsigned long long first; };
extern "C" __global__ void control_kernel(Request given) {
    __shared__ int shared[64];
    if (threadIdx.x >= 64) return;
    shared[threadIdx.x] = given.numbers[threadIdx.x];
    asm volatile("bar.sync 1, 64;" ::: "memory");
    given.numbers[threadIdx.x] = shared[63 - threadIdx.x];
}
"""
ELECTED = """
struct Request { int* numbers; unsigned long long first; };
extern "C" __global__ void control_kernel(Request given) {
    __shared__ int shared[32];
    __shared__ unsigned long long barrier;
    const unsigned at = (unsigned)__cvta_generic_to_shared(&barrier), lane = threadIdx.x % 32;
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at) : "memory");
    if (threadIdx.x < 32) shared[lane] = given.numbers[lane];
    __syncthreads();
    if (threadIdx.x / 32 == 1) {
        given.numbers[lane] = shared[31 - lane];
        __syncwarp();
        if (lane == 0)
            asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }"
                         :: "r"(at) : "memory");
    } else if (threadIdx.x < 32) {
        unsigned is_done;
        do asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0;"
                        " selp.u32 %0, 1, 0, p; }" : "=r"(is_done) : "r"(at) : "memory");
        while (!is_done);
        shared[lane] = 0;
    }
}
"""
KNOWN = {  # in the megakernel's source
    "EMPTY_ARRIVALS = WARPS;": "EMPTY_ARRIVALS = COMPUTING;",
    "if (lane == 0) barrier_arrive(empty": "barrier_arrive(empty",
    'asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(count) : "memory");': """
    extern __shared__ __align__(128) u8 memory[];
    const u32 at = shared_address(memory) + 8 * barrier;
    u64 state;
    u32 is_done;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at) : "memory");
    do asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2;"
                    " selp.u32 %0, 1, 0, p; }" : "=r"(is_done) : "r"(at), "l"(state) : "memory");
    while (!is_done);""",
    "struct Shared {": "struct Shared {\n    u64 syncs[4];",
    "shared.lost = 0;": """shared.lost = 0;
    for (u32 n = 1; n < 4; ++n)
        barrier_init(shared_address(shared.syncs + n), n == 1 ? COMPUTING : ROW_THREADS);""",
}

LAYER_KERNELS = {  # of attention_cuda.cu and product_wgmma.cu
    *(*FRAME_KERNELS, "attend_slots"),
    *("wgmma_gated", "wgmma_parts", "add_and_normalise"),
}
PRODUCTS = {  # of aten; with inference mode some are seen before they are taken apart
    *("linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "einsum"),
    *("scaled_dot_product_attention", "convolution", "conv1d", "conv_transpose1d"),
}


class ProductsOnCpu(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ not in PRODUCTS:
            return func(*args, **kwargs)
        made = func(*tree_map_only(torch.Tensor, lambda each: each.cpu(), args), **kwargs)
        return tree_map_only(torch.Tensor, lambda each: each.to(CUDA), made)


class Request(ctypes.Structure):
    _fields_ = (("numbers", ctypes.c_uint64), ("first", ctypes.c_uint64))


def prompt_of(model: Qwen3TTS, num_ids: int) -> Prompt:
    ids = [5 + n % 50 for n in range(num_ids)]
    return build_prompt(model.config, ids, role_ids=[1, 2, 3], layout="whole", preset="ryan")


def speak(backend: CudaGraphBackend, lengths: list[int], num_frames: int, renders: bool) -> None:
    """Step one slot, then all slots; in a full run also the other slots and a new one."""
    sampling = [SamplingParams(seed=n, min_frames=40, max_frames=40) for n in range(len(lengths))]
    prompts = [prompt_of(backend.model, length) for length in lengths]
    slots = [backend.admit(*each) for each in zip(prompts, sampling, strict=True)]
    print(f"{len(slots)} prompts", flush=True)
    is_small = num_frames == 1
    for some in (slots[:1], slots, slots[1:])[: 2 if is_small else 3]:
        frames = backend.step(some, num_frames)
        assert frames.lengths == (num_frames,) * len(some), frames.status
        print(f"{num_frames} frames of {len(some)} slots", flush=True)
        if renders:
            backend.render(some, frames)
            print("their samples", flush=True)
    if not is_small:
        backend.release(slots[0])
        backend.step([backend.admit(prompts[-1], sampling[0])], num_frames)
    torch.cuda.synchronize()


def run_megakernel(tiny: Path, is_small: bool) -> None:
    """Released widths, two layers of the talker, one of the predictor; prompts on two pages."""
    raw, _ = load_configs("0.6B-CustomVoice")
    raw["talker_config"]["num_hidden_layers"] = 2
    raw["talker_config"]["code_predictor_config"]["num_hidden_layers"] = 1
    _, codec_config = load_configs(str(tiny / "custom_voice"))
    model = random_module(Qwen3TTS, parse_model_config(raw), CUDA, torch.bfloat16)
    codec = random_module(Codec, codec_config, CUDA, torch.float32)
    codec.fold()
    backend = MegakernelBackend(
        model, codec, max_streams=3, max_frames=64, codec_precision="float32", is_capturing=False
    )
    speak(backend, [10, 60] if is_small else [10, 50, 60], 1 if is_small else 3, renders=False)
    assert not backend._layers.num_faults  # type: ignore[attr-defined]


def run_known(tiny: Path, is_small: bool) -> None:
    source = kernel.source

    def known_source(name: str) -> str:
        text = source(name)
        for before, after in KNOWN.items():
            assert text.count(before) == 1, before
            text = text.replace(before, after)
        return text

    with mock.patch.object(kernel, "source", known_source):
        run_megakernel(tiny, is_small)


def run_fused(tiny: Path, name: str, precision: CodecPrecision, is_small: bool) -> None:
    """Frames, prompts and codec of a tiny model; 18 rows also use the split products."""
    checkpoint = Checkpoint.open(tiny / name)
    model, codec = checkpoint.load_model(CUDA, torch.bfloat16), checkpoint.load_codec(CUDA)
    backend = CudaGraphBackend(
        model, codec, max_streams=18, max_frames=64, layers="fused",
        codec_precision=precision, is_capturing=False,
    )  # fmt: skip
    speak(backend, [10, 60, *[12] * 16], 1 if is_small else 2, renders=True)


def run_hopper(tiny: Path, is_small: bool) -> None:
    """The CUDA kernels of the layers: released widths and 64 rows, then every tile size.

    The talker has two layers, the predictor one. In a full run the keys of a slot fill two spans.
    """
    raw, _ = load_configs("1.7B-CustomVoice")
    small, codec_config = load_configs(str(tiny / "custom_voice"))
    raw |= {name: each for name, each in small.items() if name.endswith("token_id")}
    raw["talker_config"]["text_vocab_size"] = small["talker_config"]["text_vocab_size"]
    raw["talker_config"]["num_hidden_layers"] = 2
    raw["talker_config"]["code_predictor_config"]["num_hidden_layers"] = 1
    model = random_module(Qwen3TTS, parse_model_config(raw), CUDA, torch.bfloat16)
    codec = random_module(Codec, codec_config, CUDA, torch.float32)
    codec.fold()
    kernels = product_wgmma.load_products(CUDA)
    assert kernels is not None
    backend = CudaGraphBackend(
        model, codec, max_streams=40, max_frames=64, layers="fused", codec_precision="float32",
        is_capturing=False,
    )  # fmt: skip
    with all_launched(LAYER_KERNELS):
        lengths = [10, 60 if is_small else 300, *[12] * 38]
        speak(backend, lengths, 1 if is_small else 2, renders=False)
    if not is_small:
        run_layer_products(kernels)


@contextmanager
def all_launched(wanted: set[str]) -> Iterator[None]:
    """Fail if one of these kernels is not launched."""
    missing = set(wanted)

    def watch(name: str, _: dict[str, Any], launch: Callable[[], Any]) -> Any:
        missing.discard(name)
        return launch()

    with watched_launches(watch):
        yield
    assert not missing, f"not launched: {', '.join(sorted(missing))}"


def run_layer_products(kernels: WgmmaProducts) -> None:
    """Every tile size, with rows that do not fill the last tile."""
    for is_gated, choices in ((True, GATED), (False, SPLIT)):
        for cut in {cut for *_, cut in choices if cut is not None}:
            x = torch.randn(200, 512, device=CUDA).bfloat16()
            weight = torch.randn(3 * cut.columns * (1 + is_gated), 512, device=CUDA).bfloat16()
            out = torch.empty(NUM_PARTS, 200, 3 * cut.columns, device=CUDA)
            kernels.multiply(cut, x, weight, out[0].bfloat16() if is_gated else out)
    torch.cuda.synchronize()


def run_wide(is_small: bool) -> None:
    """The codec's kernels for many rows: both units, and every product with streams to spare."""
    run_units()
    kernels = load_products(CUDA)
    assert kernels is not None
    lengths = (36,) if is_small else (1, 36, 128, 160)
    for shape in SHAPES:
        numbers = torch.randn(3, 2 * shape.columns, device=CUDA).abs()
        weight = torch.randn(2, 2 * shape.columns, 192, device=CUDA).half()
        product = WideProduct.pack(kernels, weight, ColumnParameters(*numbers), 9)
        assert product is not None
        with mock.patch.object(WideProduct, "_shape", lambda *_, shape=shape: shape):
            for length in lengths:
                x = torch.randn(37, 9 + length, 192, device=CUDA).half()
                out, active = (x.new_empty(37, length, 2 * shape.columns) for _ in range(2))
                product.run(x, Outputs(out.clone(), out, active))
    torch.cuda.synchronize()


def run_units() -> None:
    """Tiles of one row, the last row of a history, and windows that end after the inputs."""
    kernels = load_kernels(CUDA)
    assert kernels is not None
    for size in (96, 192):
        first, second, parameters = random_unit(TAPS, size, CUDA)
        unit = WideUnit.pack(kernels, first, second, parameters, parameters, MAX_DILATION)
        assert unit is not None
        for num_streams, length in ((1, 1), (2, 65), (3, 200)):
            reach = (TAPS - 1) * MAX_DILATION
            x = torch.randn(num_streams, reach + length, size, device=CUDA).half()
            out, active = (x.new_empty(num_streams, length, size) for _ in range(2))
            unit.run(x, Outputs(out.clone(), out, active))


def run_control(source: str, first: int = 0) -> None:
    """Run `CONTROL`: two races between warps if `first` is 0, else out-of-bounds writes."""
    numbers = torch.zeros(128, dtype=torch.int32, device=CUDA)
    capability = torch.cuda.get_device_capability()
    module = driver.Module(compile_source(source, architecture_of(capability), []))
    request = Request(numbers.data_ptr(), first)
    driver.launch_cooperative(module.function("control_kernel"), 1, 128, 0, request)
    torch.cuda.synchronize()


PARTS: dict[str, Callable[[Path, bool], None]] = {
    "megakernel": run_megakernel,
    "known": run_known,
    "fused": lambda tiny, is_small: run_fused(tiny, "custom_voice", "split", is_small),
    "half": lambda tiny, is_small: run_fused(tiny, "custom_voice_projected", "half", is_small),
    "hopper": run_hopper,
    "wide": lambda _, is_small: run_wide(is_small),
    "memory": lambda *_: run_control(CONTROL, 2**20),
    "race": lambda *_: run_control(CONTROL),
    "named": lambda *_: run_control(NAMED),
    "elected": lambda *_: run_control(ELECTED),
}


@torch.inference_mode()
def main() -> None:
    part, tiny, *size = sys.argv[1:]
    torch.zeros(1, device=CUDA)  # creates the context, which the driver's functions need
    with ProductsOnCpu():  # type: ignore[no-untyped-call]
        PARTS[part](Path(tiny), size == ["small"])
    print(f"{part}: done", flush=True)


if __name__ == "__main__":
    main()
