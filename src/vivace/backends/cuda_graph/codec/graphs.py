"""Runs the codec's decoder as CUDA graphs, for batches of slots with streaming state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivace.backends.base import CodecPrecision, Rendered, Samples, Sound, frame_loudness
from vivace.backends.cuda_graph.buckets import (
    BATCHES,
    CODEC_FRAMES,
    CODEC_PASS,
    fit,
    largest_batch,
    split_frames,
)
from vivace.backends.cuda_graph.codec.plain import PlainDecoder, SlotDecoder
from vivace.backends.cuda_graph.compile import kernel_compiler, triton_refusal
from vivace.backends.cuda_graph.graphs import GraphPool, Work
from vivace.backends.cuda_graph.slots.staging import HostCopies, RowNumbers, upload
from vivace.backends.cuda_graph.slots.state_cache import StateCache, state_bytes
from vivace.backends.cuda_graph.slots.table import QueuedAudio, Sounds
from vivace.backends.kernel_cache import Comparison
from vivace.errors import BackendUnavailableError
from vivace.model.codec import Codec

WORST_ERROR = 10 ** (-45 / 20)  # -45 dB of the signal: inaudible
WORST_HALF_ERROR = 10 ** (-35 / 20)
MAX_KEPT = 16  # voices whose codec state is cached

log = logging.getLogger(__name__)

Place = tuple[int, int]  # a slot or its index, and the first frame
SILENCE: Sound = (np.empty(0, np.float32), np.empty(0, np.float32))


def pick_decoder(
    precision: CodecPrecision, codec: Codec, num_rows: int, dtype: torch.dtype = torch.float32
) -> SlotDecoder:
    """The codec's decoder; `dtype` is the model's, which `auto` follows."""
    if precision == "float32":
        return PlainDecoder(codec, num_rows)
    is_half = precision == "half" or (precision == "auto" and dtype != torch.float32)
    refusal = split_refusal(codec.device)
    level = logging.WARNING if codec.device.type == "cuda" else logging.INFO
    if refusal is None:
        try:
            return _tried_fused(codec, num_rows, is_half=is_half)
        except Exception as error:  # compilers and drivers raise many types
            level = logging.WARNING
            refusal = f"they do not work: {str(error).strip().splitlines()[-1]}"
    if precision != "auto":
        raise BackendUnavailableError(
            f"codec_precision {precision!r}, the codec's fused kernels, cannot run here: {refusal}"
        )
    log.log(level, "the codec runs as plain PyTorch instead of its fused kernels: %s", refusal)
    return PlainDecoder(codec, num_rows, fallback=refusal)


def _tried_fused(codec: Codec, num_rows: int, *, is_half: bool) -> SlotDecoder:
    """Build the fused decoder and compare it with the reference decoder on two frames.

    The comparison is left out if it has passed on this machine.
    """
    from vivace.backends.cuda_graph.codec.fused import FusedDecoder

    decoder = FusedDecoder(codec, num_rows, is_half=is_half)
    key = (f"codec {is_half}", repr(codec.config), _describe_weights(codec))
    comparison = Comparison(key, codec.device)
    num_books = codec.config.decoder_config.num_quantizers
    codes = torch.arange(2 * num_books, device=codec.device).view(2, num_books)
    padding = torch.tensor([num_rows - 1], device=codec.device)
    if (compile_kernels := kernel_compiler(codec.device)) is not None:
        decode = partial(decoder.decode, padding, codes[:1, None])
        compile_kernels([partial(decoder.reset, padding), decode])
        decoder.reset(padding)
    if comparison.has_passed:
        return decoder
    made = torch.cat([decoder.decode(padding, frame[None, None])[0] for frame in codes])
    decoder.reset(padding)
    expected = codec.decode(codes)
    error = float((made - expected).norm() / expected.norm())
    if not error < (WORST_HALF_ERROR if is_half else WORST_ERROR):
        raise BackendUnavailableError(f"their samples are off by {error:.1e} of the signal")
    comparison.note_passed()
    return decoder


def _describe_weights(codec: Codec) -> str:
    """A text for these weights: a codec of another speaker may exceed the range of float16."""
    norms = [each.float().norm() for each in codec.decoder.state_dict().values()]
    return str(torch.stack(norms).tolist())


def split_refusal(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"they need an NVIDIA GPU; the codec is on {device}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "they need a GPU of compute capability 8.0 or newer"
    return triton_refusal()


class CodecGraphs:
    def __init__(
        self,
        codec: Codec,
        num_slots: int,
        graphs: GraphPool,
        *,
        precision: CodecPrecision,
        dtype: torch.dtype = torch.float32,  # of the model
    ) -> None:
        self._decoder = pick_decoder(precision, codec, num_slots + 1, dtype)
        self._device = codec.device
        self._graphs = graphs
        self._num_codebooks = codec.config.decoder_config.num_quantizers
        self._num_codes = codec.config.decoder_config.codebook_size
        self._samples_per_frame = codec.config.decode_upsample_rate
        self._most = batch = fit(num_slots, BATCHES) or BATCHES[-1]  # slots per pass
        frames = min(CODEC_PASS, batch * CODEC_FRAMES[0])
        self._rows = RowNumbers(batch, num_slots, self._device)
        self._copies = HostCopies()
        self._codes = torch.zeros(
            frames * self._num_codebooks, dtype=torch.int64, device=self._device
        )
        self._samples = torch.zeros(frames * self._samples_per_frame, device=self._device)
        self._kept = StateCache(MAX_KEPT * state_bytes(self._decoder.copy_state(0)))

    @property
    def num_bytes(self) -> int:
        return self._decoder.num_bytes + self._samples.nbytes

    @property
    def num_kept_bytes(self) -> int:
        """Size of the voice cache."""
        return self._kept.num_bytes

    @property
    def description(self) -> str:
        """Name of the decoder in use; after a fallback, with the reason."""
        why = self._decoder.fallback
        return self._decoder.name if why is None else f"{self._decoder.name}, because {why}"

    def reset(self, rows: Sequence[int]) -> None:
        """Clear the streaming state of these slots."""
        with self._graphs.on_stream():
            is_one = len(rows) == 1
            self._decoder.reset(rows[0] if is_one else upload(rows, torch.int64, self._device))

    def load_reference(self, row: int, codes: NDArray[np.int64]) -> None:
        """Decode a reference into a new slot's state, or copy the state from the cache."""
        key = codes.tobytes()
        with self._graphs.on_stream():
            kept = self._kept.get(key)
            if kept is not None:
                self._decoder.set_state(row, kept)
                return
            start = 0
            for size in split_frames(len(codes)):
                self._queue_pass([row], size, self._given([codes[start : start + size]]))
                start += size
            self._kept.put(key, self._decoder.copy_state(row))

    def start(
        self, rows: Sequence[int], codes: Sequence[NDArray[np.int64]]
    ) -> Callable[[], Rendered]:
        """Queue these frames of these slots; the returned call waits for their samples."""
        parts: list[list[QueuedAudio]] = [[] for _ in rows]
        for size, members in _passes([len(part) for part in codes]):
            for batch in self._batches(members, size):
                given = self._given([codes[i][start : start + size] for i, start in batch])
                found = self._start_pass([rows[i] for i, _ in batch], size, given)
                for (i, _), audio in zip(batch, found, strict=True):
                    parts[i].append(audio)

        def wait() -> Rendered:
            sounds = [
                join_sounds([audio.first(audio.num_frames) for audio in part]) for part in parts
            ]
            return Rendered([samples for samples, _ in sounds], [loud for _, loud in sounds])

        return wait

    def start_ahead(
        self,
        places: Sequence[Place],  # slot, and first frame
        num_frames: int,
        ring: Tensor,  # [slots, frames, codebooks]
        frames: GraphPool,
    ) -> list[QueuedAudio]:
        """Queue the codec for frames whose codes are not yet copied to the host."""
        self._graphs.follow(frames)
        queued = list[QueuedAudio]()
        for batch in self._batches(places, num_frames):
            rows = [row for row, _ in batch]
            queued += self._start_pass(rows, num_frames, self._made(batch, num_frames, ring))
        return queued

    def warm(self, batch: int, num_frames: int) -> None:
        self._graph(batch, num_frames)

    def _batches(self, members: Sequence[Place], num_frames: int) -> Iterator[Sequence[Place]]:
        most = min(self._most, largest_batch(num_frames))
        for first in range(0, len(members), most):
            yield members[first : first + most]

    def _start_pass(
        self, rows: Sequence[int], num_frames: int, write: Callable[[Tensor], object]
    ) -> list[QueuedAudio]:
        """Queue one pass; returns the audio of each slot."""
        with self._graphs.on_stream():
            read = _measured(
                self._copies.start(self._queue_pass(rows, num_frames, write)), num_frames
            )
        return [QueuedAudio(num_frames, read, row) for row in range(len(rows))]

    def _given(self, codes: Sequence[NDArray[np.int64]]) -> Callable[[Tensor], object]:
        """Writes codes of the host."""
        return lambda block: block.copy_(upload(np.stack(codes), torch.int64, self._device))

    def _made(
        self, places: Sequence[Place], num_frames: int, ring: Tensor
    ) -> Callable[[Tensor], object]:
        """Writes codes that are on the device."""

        def write(block: Tensor) -> None:
            codes = _ring_entries(places, num_frames, ring).view(block.shape)
            # End of speech and entries after it are not valid codes.
            block.copy_(codes.clamp(max=self._num_codes - 1))

        return write

    def _queue_pass(
        self, rows: Sequence[int], num_frames: int, write: Callable[[Tensor], object]
    ) -> Tensor:
        """Run one graph on the codes that `write` stores in [slots, frames, codebooks]."""
        batch = fit(len(rows), BATCHES) or len(rows)
        decode = self._graph(batch, num_frames)
        codes, samples = self._buffers(batch, num_frames)
        self._rows.write(rows, batch)
        write(codes[: len(rows)])
        decode()
        return samples[: len(rows)]

    def _graph(self, batch: int, num_frames: int) -> Work:
        rows = self._rows.tensor[:batch]
        codes, samples = self._buffers(batch, num_frames)

        def decode() -> None:
            samples.copy_(self._decoder.decode(rows, codes))

        return self._graphs.get(("codec", batch, num_frames), decode, self._rows.park)

    def _buffers(self, batch: int, num_frames: int) -> tuple[Tensor, Tensor]:
        """Codes [slots, frames, codebooks] and samples [slots, samples] of a pass."""
        count = batch * num_frames
        codes = self._codes[: count * self._num_codebooks].view(batch, num_frames, -1)
        return codes, self._samples[: count * self._samples_per_frame].view(batch, -1)


def _ring_entries(places: Sequence[Place], num_frames: int, ring: Tensor) -> Tensor:
    """The entries of these frames: [slots * frames, codebooks]."""
    size = ring.shape[1]
    [(row, start), *more] = places
    first = start % size
    if not more and first + num_frames <= size:  # a view: no numbers are copied to the device
        return ring[row, first : first + num_frames]
    rows, starts = np.array(places).T[:, :, None]
    at = rows * size + (starts + np.arange(num_frames)) % size
    return ring.flatten(0, 1).index_select(0, upload(at.ravel(), torch.int64, ring.device))


def _passes(lengths: Sequence[int]) -> list[tuple[int, list[Place]]]:
    """Groups of equal frame counts: (num_frames, [(slot index, first frame), ...])."""
    passes: dict[tuple[int, int], list[Place]] = {}
    for index, length in enumerate(lengths):
        start, count = 0, dict.fromkeys(CODEC_FRAMES, 0)
        for size in split_frames(length):
            passes.setdefault((-size, count[size]), []).append((index, start))
            count[size] += 1
            start += size
    return [(-size, members) for (size, _), members in sorted(passes.items())]


def _measured(read: Callable[[], Samples], num_frames: int) -> Callable[[], Sounds]:
    """Samples [slots, samples] with their loudness, computed once for all slots."""
    known: list[Sounds] = []

    def wait() -> Sounds:
        if not known:
            samples = read()
            known.append((list(samples), list(frame_loudness(samples, num_frames))))
        return known[0]

    return wait


def join_sounds(parts: Sequence[Sound]) -> Sound:
    """Concatenate consecutive audio; a single part is not copied."""
    if len(parts) <= 1:
        return parts[0] if parts else SILENCE
    samples, loudness = zip(*parts, strict=True)
    return np.concatenate(samples), np.concatenate(loudness)
