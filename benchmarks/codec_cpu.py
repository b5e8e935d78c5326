"""Milliseconds per frame of the codec's decoder on this CPU, and its distance from PyTorch.

    python benchmarks/codec_cpu.py --threads 1 2 --json benchmarks/results/codec-cpu.json

Rows: the released shape with random weights and the embedded voice; PyTorch and every instruction
set of the C++ kernels that this CPU has. The distance is measured on the same codes: a sentence of
the embedded voice, or random codes. CPU time does not depend on other work on the machine; with
one thread it is the elapsed time of an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from report import write_report
from shapes import load_configs, random_module

from vivace import TTS
from vivace.backends.cpu.build import load_library
from vivace.backends.cpu.codec import KERNELS, NativeCodecDecoder
from vivace.checkpoint import EMBEDDED, load_codec
from vivace.cli.bench.machine import machine
from vivace.errors import BackendUnavailableError
from vivace.model.codec import Codec
from vivace.model.conv import CausalState

FRAMES = (1, 4, 8)  # of one call
NUM_RANDOM_FRAMES = 12
TEXT = "The quick brown fox jumps over the lazy dog, and nobody in the village knows why."
CPU = torch.device("cpu")

Decode = Callable[[NDArray[np.int64]], NDArray[np.float32]]  # continues one stream


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--kernels", nargs="+", default=["pytorch", *KERNELS])
    parser.add_argument("--note", default="", help="kept in the JSON")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    for shape in arguments.shapes:
        codec, codes = SHAPES[shape]()
        expected = pytorch_decoder(codec)(codes)
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            for kernels in arguments.kernels:
                decode = make_decoder(codec, kernels, threads)
                if decode is None:
                    continue
                figures = measure(decode, codes, expected, arguments.repeats)
                row = {"shape": shape, "kernels": kernels, "threads": threads, **figures}
                print(row, flush=True)
                results.append(row)
                report = {"benchmark": "codec_cpu", "machine": machine(), "note": arguments.note}
                write_report(arguments.json, report | {"results": results})


def released() -> tuple[Codec, NDArray[np.int64]]:
    torch.manual_seed(0)
    _, config = load_configs("0.6B-CustomVoice")
    codec: Codec = random_module(Codec, config, CPU, torch.float32)
    codec.fold()
    sizes = (NUM_RANDOM_FRAMES, config.decoder_config.num_quantizers)
    codes = np.random.default_rng(0).integers(0, config.decoder_config.codebook_size, sizes)
    return codec, codes


def embedded() -> tuple[Codec, NDArray[np.int64]]:
    with TTS.load(device="cpu") as tts:
        parts = [chunk.codes for chunk in tts.stream(TEXT, seed=1)]
    codes = np.concatenate([part for part in parts if part is not None])
    return load_codec(EMBEDDED, CPU), codes


SHAPES = {"released": released, "embedded": embedded}


def make_decoder(codec: Codec, kernels: str, threads: int) -> Decode | None:
    """None if the CPU lacks the instruction set."""
    if kernels == "pytorch":
        return pytorch_decoder(codec)
    try:
        decoder = NativeCodecDecoder(codec.decoder, load_library(), threads, kernels)
    except BackendUnavailableError:
        return None
    state = decoder.new_state()
    return lambda codes: decoder.decode(codes, state)


def pytorch_decoder(codec: Codec) -> Decode:
    state = CausalState()

    def decode(codes: NDArray[np.int64]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return codec.decode(torch.from_numpy(codes), state).numpy()

    return decode


def measure(
    decode: Decode, codes: NDArray[np.int64], expected: NDArray[np.float32], repeats: int
) -> dict[str, Any]:
    error = decode(codes) - expected  # the first call of a new stream
    rms = float(np.sqrt((error.astype(np.float64) ** 2).mean()))
    signal = float(np.sqrt((expected.astype(np.float64) ** 2).mean()))
    times = {str(frames): time_ms(decode, codes[:frames], repeats) for frames in FRAMES}
    figures = {
        "ms_per_frame": {frames: wall for frames, (wall, _) in times.items()},
        "cpu_ms_per_frame": {frames: cpu for frames, (_, cpu) in times.items()},
    }
    if not rms:
        return figures
    return {
        **figures,
        "db_from_pytorch": round(20 * float(np.log10(signal / rms)), 1),
        "largest_error": float(np.abs(error).max()),
    }


def time_ms(decode: Decode, codes: NDArray[np.int64], repeats: int) -> tuple[float, float]:
    """The medians per frame: elapsed time, and CPU time of all threads."""
    walls, cpus = [], []
    for _ in range(repeats):
        began, began_cpu = time.perf_counter(), time.process_time()
        decode(codes)
        walls.append(time.perf_counter() - began)
        cpus.append(time.process_time() - began_cpu)
    wall, cpu = (1000 * statistics.median(times) / len(codes) for times in (walls, cpus))
    return round(wall, 3), round(cpu, 3)


if __name__ == "__main__":
    main()
