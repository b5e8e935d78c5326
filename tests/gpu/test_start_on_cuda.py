"""Start-up on a GPU: uploads, parallel compilation, and nothing left to compile after warm-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.official_calls import official_items
from tests.support.tiny import Tiny
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.layers.selection import pick_layers
from vivace.model.upload import BUFFER_BYTES, uploader
from vivace.speech import SamplingParams

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CUDA = torch.device("cuda")


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """Names of the kernels that Triton compiles or reads from its cache."""
    from triton import knobs

    names: list[str] = []

    def listen(*, src: Any, **_: object) -> None:
        names.append(src.name)

    before = knobs.compilation.listener
    knobs.compilation.listener = listen
    yield names
    knobs.compilation.listener = before


def load(part: Tiny, **options: Any) -> CudaGraphBackend:
    model = part.checkpoint.load_model(CUDA, torch.bfloat16)
    return CudaGraphBackend(
        model, part.checkpoint.load_codec(CUDA), max_streams=3, max_frames=320, **options
    )


@pytest.mark.parametrize("num_bytes", [0, 1, 1000, BUFFER_BYTES, 5 * BUFFER_BYTES // 2 + 3])
def test_uploaded_tensors_equal_their_sources(num_bytes: int) -> None:
    upload = uploader(CUDA)
    source = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8)
    sources = [source, source.flip(0), torch.tensor(7.0), torch.randn(3, 5, 7).bfloat16()] * 8
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(upload, sources))
    for tensor, expected in zip(found, sources, strict=True):
        assert tensor.is_cuda
        assert torch.equal(tensor.cpu(), expected)


def test_loaded_weights_equal_those_on_the_cpu(tiny: Callable[[str], Tiny]) -> None:
    part = tiny("base")
    loaded = part.checkpoint.load_model(CUDA, torch.float32).state_dict()
    expected = part.checkpoint.load_model(torch.device("cpu"), torch.float32).state_dict()
    assert loaded.keys() == expected.keys()
    for name, tensor in loaded.items():
        assert torch.equal(tensor.cpu(), expected[name]), name


@pytest.mark.parametrize("layers", ["fused", "megakernel"])
def test_no_request_compiles_or_captures_after_warmup(
    tiny: Callable[[str], Tiny], compilations: list[str], layers: str
) -> None:
    part = tiny("custom_voice")
    try:
        backend = load(part, layers=layers)
    except Exception as error:
        pytest.skip(f"{layers}: {error}")
    backend.warmup()
    num_graphs = len(backend.graphs), len(backend.codec_graphs)
    compilations.clear()
    prompts = [item.prompt(part) for item in official_items("custom_voice")][:3]
    samplings = [
        SamplingParams(seed=seed, max_frames=60, min_frames=60, top_p=top_p)
        for seed, top_p in enumerate((1.0, 1.0, 0.7))
    ]
    for count in (1, 2, 3):
        pairs = list(zip(prompts, samplings, strict=True))[-count:]
        slots = [backend.admit(*pair) for pair in pairs]
        for num_frames in (1, 1, 2, 4, 8, 16, 7):
            backend.render(slots, backend.step(slots, num_frames))
        for slot in slots:
            backend.release(slot)
    assert compilations == []
    assert (len(backend.graphs), len(backend.codec_graphs)) == num_graphs
    assert backend.fallbacks == {}


def test_second_start_leaves_the_comparison_out_and_speaks_the_same(
    tiny: Callable[[str], Tiny], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    part, compared = tiny("custom_voice"), list[str]()
    monkeypatch.setattr(
        "vivace.backends.cuda_graph.layers.selection._compare",
        lambda layers, *_: compared.append(layers.name),
    )
    [item, *_] = official_items("custom_voice")
    spoken = []
    for _ in range(2):
        backend = load(part)
        slot = backend.admit(item.prompt(part), SamplingParams(seed=3, max_frames=20))
        spoken.append(backend.step([slot], 12).of(0))
    assert compared == ["fused"]
    assert np.array_equal(spoken[0], spoken[1])
    assert pick_layers("plain", backend.model, backend._table).name == "plain"
    assert compared == ["fused"]
