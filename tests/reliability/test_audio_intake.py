"""G6: hostile recordings are refused with an error, or read within the limits.

The inputs are mutated files in every available container, and bombs: small files that declare much
audio. The control is libsndfile without our limits. `tests/audio/test_sandbox.py` tests a decoder
process that hangs, crashes, uses much memory or returns wrong data; `test_confine.py` its sandbox.
"""

from __future__ import annotations

import io
import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.support.figures import memory_mib, record, seed_of_round
from vivace.audio.decode import DEFAULT_LIMITS, MIB
from vivace.audio.files import Recording, check_reference, read_audio
from vivace.audio.sandbox import CPU_LIMIT_S, Sandbox
from vivace.errors import AudioError

RATE = 24_000
KINDS = {
    "wav": ("WAV", "PCM_16"),
    "wav float": ("WAV", "FLOAT"),
    "wav 24": ("WAV", "PCM_24"),
    "wav ulaw": ("WAV", "ULAW"),
    "wav adpcm": ("WAV", "MS_ADPCM"),
    "wavex": ("WAVEX", "FLOAT"),
    "flac": ("FLAC", "PCM_16"),
    "vorbis": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "aiff": ("AIFF", "PCM_16"),
    "au": ("AU", "PCM_16"),
    "caf": ("CAF", "PCM_16"),
    "w64": ("W64", "PCM_16"),
}
CHILD_MIB = 512
PARENT_MIB = 32
Read = Callable[[bytes], Recording]


def encode(samples: np.ndarray, format: str, subtype: str, rate: int = RATE) -> bytes:
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", rate, 1, subtype, format=format) as file:
        for start in range(
            0, len(samples), RATE
        ):  # libsndfile crashes if it writes much Vorbis at once
            file.write(samples[start : start + RATE])
    return buffer.getvalue()


def tone(seconds: float) -> np.ndarray:
    return (0.3 * np.sin(np.arange(int(RATE * seconds)) / 9)).astype(np.float32)


@cache
def whole_files() -> dict[str, bytes]:
    return {name: encode(tone(0.1), *kind) for name, kind in KINDS.items()}


# -- mutants and bombs -----------------------------------------------------------------------------


def mutate(chance: random.Random) -> bytes:
    """Damage random bytes, most of them in the headers."""
    content = bytearray(whole_files()[chance.choice(list(KINDS))])
    for _ in range(chance.randint(1, 5)):
        if len(content) < 8:
            break
        where = chance.randrange(min(len(content) - 4, chance.choice((16, 64, 200, len(content)))))
        what = chance.randrange(6)
        if what == 0:
            content[where] = chance.randrange(256)
        elif what == 1:
            number = chance.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000, 0xFFFF))
            content[where : where + 4] = struct.pack(chance.choice("<>") + "I", number)
        elif what == 2:
            del content[where : where + chance.randint(1, 64)]
        elif what == 3:
            content[where:where] = chance.randbytes(chance.randint(1, 64))
        elif what == 4:
            del content[-chance.randint(1, len(content) // 2) :]
        else:
            other = whole_files()[chance.choice(list(KINDS))]
            content[where:] = other[chance.randrange(len(other)) :]
    return bytes(content)


def forge_wav(rate: int, channels: int, bits: int, tag: int, data: bytes, size: int) -> bytes:
    frame = max(1, channels * bits // 8)
    head = struct.pack("<HHIIHH", tag, channels, rate, rate * frame % 2**32, frame % 2**16, bits)
    chunks = (
        b"fmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", size) + data
    )
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


@cache
def bombs() -> tuple[bytes, ...]:
    """Return files with forged rates, channels, widths and lengths, packed silence and NaN."""
    plain = tone(1.5)
    forged = [
        forge_wav(rate, channels, bits, tag, plain.tobytes()[:100_000], size)
        for rate in (0, 1, RATE, 2**31 - 1)
        for channels, bits, tag in ((0, 16, 1), (1, 16, 1), (65_535, 16, 1), (1, 32, 3), (2, 0, 1))
        for size in (0, 2**32 - 1)
    ]
    packed = [
        encode(np.zeros(seconds * RATE, np.float32), *KINDS["flac"]) for seconds in (175, 180, 400)
    ]
    wrong = [np.full(36_000, value, np.float32) for value in (np.nan, np.inf, 1e30)]
    numbers = [encode(each, "WAV", "FLOAT") for each in wrong]
    flac = bytearray(encode(plain, *KINDS["flac"]))
    lengths = []
    for num_samples in (1, 2**35, 2**36 - 1):
        packed_fields = int.from_bytes(flac[18:26], "big") >> 36 << 36 | num_samples
        lengths.append(bytes(flac[:18] + packed_fields.to_bytes(8, "big") + flac[26:]))
    headers = [whole_files()[name][:size] for name in ("flac", "vorbis", "mp3") for size in (4, 60)]
    nothing = [b"", b"RIFF", b"\x1a\x45\xdf\xa3" * 50, b"ID3\x04\0\0\x7f\x7f\x7f\x7f", bytes(5_000)]
    return (*forged, *packed, *numbers, *lengths, *headers, *nothing)


# -- results ---------------------------------------------------------------------------------------


@dataclass
class Intake:
    """Reads recordings and records violations."""

    read: Read
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    def take(self, content: bytes) -> None:
        began = time.monotonic()
        try:
            recording = self.read(content)
        except AudioError:
            self.outcomes["refused"] += 1
        except Exception as error:
            self.faults.append(repr(error)[:200])
        else:
            self.outcomes["read"] += 1
            self.check(recording)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def check(self, recording: Recording) -> None:
        samples, limits = recording.samples, DEFAULT_LIMITS
        if not limits.min_sample_rate <= recording.sample_rate <= limits.max_sample_rate:
            self.faults.append(f"{recording.sample_rate} Hz")
        if samples.ndim != 1 or samples.nbytes > limits.max_decoded_bytes:
            self.faults.append(f"samples {samples.shape}")
            return
        try:
            check_reference(recording)
        except AudioError:
            return
        self.outcomes["a voice"] += 1
        if not np.isfinite(samples).all():
            self.faults.append("a voice that is not finite")


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


def children_peak_mib(sandbox: Sandbox) -> float:
    """Return the peak memory of the pool's processes."""
    most = 0
    for pid in sandbox.child_pids():
        status = Path(f"/proc/{pid}/status")
        for line in status.read_text().splitlines() if status.exists() else ():
            if line.startswith("VmHWM"):
                most = max(most, int(line.split()[1]))
    return most / 1024


def take_all(contents: Iterator[bytes], intake: Intake) -> None:
    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(intake.take, contents):
            pass


@pytest.mark.parametrize(
    "num_mutants", [200, pytest.param(200_000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_mutated_audio_file_is_refused_or_harmless(num_mutants: int, sandbox: Sandbox) -> None:
    intake, num_done = Intake(partial(read_audio, sandbox=sandbox)), 0
    read_audio(whole_files()["flac"], sandbox=sandbox)  # starts a process of the pool
    before_mib = memory_mib()
    while num_done < num_mutants:  # in parts: `map` submits all items at once
        chance = random.Random(f"{seed_of_round()}/{num_done}")
        part = min(1_000, num_mutants - num_done)
        take_all((mutate(chance) for _ in range(part)), intake)
        num_done += part
    assert intake.faults == []
    assert min(intake.outcomes["refused"], intake.outcomes["read"]) > num_mutants / 50
    assert children_peak_mib(sandbox) <= CHILD_MIB
    if num_mutants > 1_000:
        growth_mib = memory_mib() - before_mib
        record(
            "G6 mutants",
            cases=num_mutants,
            containers=len(KINDS),
            read=intake.outcomes["read"],
            refused=intake.outcomes["refused"],
            faults=0,
            slowest_s=round(intake.slowest_s, 2),
            child_peak_mib=round(children_peak_mib(sandbox)),
            parent_growth_mib=round(growth_mib, 1),
        )
        assert growth_mib <= PARENT_MIB


def test_audio_bomb_is_refused_or_harmless(sandbox: Sandbox) -> None:
    assert len(bombs()) >= 60
    assert max(map(len, bombs())) < MIB
    intake = Intake(partial(read_audio, sandbox=sandbox))
    for content in bombs():
        intake.take(content)
    assert intake.faults == []
    assert intake.outcomes["refused"] >= 40
    assert children_peak_mib(sandbox) <= CHILD_MIB
    record(
        "G6 bombs",
        cases=len(bombs()),
        refused=intake.outcomes["refused"],
        slowest_s=round(intake.slowest_s, 2),
        cpu_limit_s=CPU_LIMIT_S,
    )


def test_control_reader_without_limits_is_detected() -> None:
    """Read with libsndfile without our limits."""

    def read(content: bytes) -> Recording:
        try:
            samples, rate = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            raise AudioError(str(error)) from error
        return Recording(samples=samples[:, 0], sample_rate=rate, sha256="")

    intake = Intake(read)
    for content in bombs():
        intake.take(content)
    faults = " ".join(intake.faults)
    assert "samples (9600000,)" in faults
    assert "1 Hz" in faults


def test_control_reader_with_another_error_is_detected() -> None:
    def read(content: bytes) -> Recording:
        raise ValueError("not an error of ours")

    intake = Intake(read)
    intake.take(b"RIFF")
    assert intake.faults == ["ValueError('not an error of ours')"]
