"""Synthesize every line with the teachers in parallel processes, as shards for training.

A shard is an .npz file with int16 audio in whole frames and a phoneme label every 40 ms.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from recipes.mini_voice.lines import SPEAKER, load_lines
from recipes.mini_voice.reading import for_teacher
from recipes.mini_voice.settings import FRAME, LABEL, SAMPLE_RATE, load_settings, parser
from recipes.mini_voice.voices import TRAINING_VOICES, Voice, Voices

UNIT = 600  # samples of one unit of the teacher's durations
SHARE = 0.05  # share of GPU memory for one worker
STOP = "stop"  # a file in the shard folder that stops synthesis; stop.N stops that of speaker N
Feed = Callable[..., list[np.ndarray]]


class Kokoro:
    """Kokoro-82M: maps hibari's phoneme ids and a voice to audio and durations.

    Runs with torch on a GPU. If the GPU fails, it reports the error and continues on the CPU.
    """

    def __init__(self, model: str) -> None:
        from recipes.mini_voice.common import DEVICE  # hibari's workers need no torch

        self._model = Path(model)
        self._is_gpu = DEVICE.type == "cuda"
        try:
            self._run = self._by_torch("cuda") if self._is_gpu else self._by_cpu()
        except Exception as error:
            self._leave_gpu(error)

    def _by_torch(self, device: str) -> Feed:
        import torch

        from recipes.mini_voice.onnx_graph import OnnxGraph

        torch.set_num_threads(1)
        torch.set_float32_matmul_precision("high")
        if device == "cuda":  # training and a dozen workers share the memory
            torch.cuda.set_per_process_memory_fraction(SHARE)
        return OnnxGraph(self._model.with_suffix(".safetensors"), torch.device(device))

    def _by_cpu(self) -> Feed:
        """Use onnxruntime, or torch if only the converted file exists."""
        if not self._model.exists() and self._model.with_suffix(".safetensors").exists():
            return self._by_torch("cpu")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            str(self._model), options, providers=["CPUExecutionProvider"]
        )
        return lambda **feed: session.run(None, feed)

    def _leave_gpu(self, error: Exception) -> None:
        if not self._is_gpu:
            raise error
        print(f"Kokoro continues without the GPU: {type(error).__name__}: {error}", flush=True)
        self._is_gpu, self._run = False, self._by_cpu()

    def _recover(self, error: RuntimeError) -> None:
        import torch

        if self._is_gpu and isinstance(error, torch.OutOfMemoryError):
            torch.cuda.empty_cache()
        else:
            self._leave_gpu(error)

    def __call__(self, ids: list[int], voice: Voice) -> tuple[np.ndarray, np.ndarray]:
        """Audio before a change of pitch, which shortens it, and durations."""
        speed = np.asarray([voice.speed / voice.pitch], np.float32)
        tokens = np.asarray([ids], np.int64)
        feed = {"tokens": tokens, "style": voice.style(len(ids) - 2), "speed": speed}
        try:
            wave, durations = self._run(**feed)
        except RuntimeError as error:  # a CUDA error: synthesize the line again
            self._recover(error)
            wave, durations = self._run(**feed)
        return wave.ravel(), durations.ravel().astype(np.int64)


class Teacher:
    """The teacher of one speaker: hibari or Kokoro, with durations.

    `choose` maps a line's number to its voice. The default is the voice of `speaker`.
    """

    def __init__(
        self, data: SimpleNamespace, speaker: int = 0, choose: Callable[[int], Voice] | None = None
    ) -> None:
        sys.path.insert(0, data.teacher)
        from hibari import Hibari, dsp

        self._data, self._dsp = data, dsp
        self._gain = data.gain_other if speaker else data.gain
        self._tts = Hibari(model=data.model, threads=1)
        self._kokoro = Kokoro(data.kokoro) if speaker else None
        if speaker and choose is None:
            choose = voices_of(data, data.speakers[speaker])
        self._choose = choose

    def _say(
        self, ids: list[int], seed: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Audio, and the phoneme of each unit of it."""
        if self._kokoro is not None and self._choose is not None:
            voice = self._choose(seed)
            wave, durations = self._kokoro(ids, voice)
            spoken = np.repeat(np.asarray(ids, np.uint8), durations)
            wave = voice.repitch(wave)
            units = (np.arange(len(wave) // UNIT) * voice.pitch).astype(int)
            return wave, spoken[np.minimum(units, len(spoken) - 1)]
        feed = {"ids": np.asarray([ids], np.int64), "speed": np.ones(1, np.float32)}
        *spectra, durations = self._tts.sess.run(None, feed)
        wave = self._dsp.synth(*(part[0] for part in spectra), rng)
        spoken = np.repeat(np.asarray(ids, np.uint8), durations.ravel())
        return wave, np.resize(spoken, len(wave) // UNIT)

    def read(self, text: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Audio int16 in whole frames, and a phoneme id for each 40 ms of it.

        `seed` is the line's number, which selects the training voice.
        """
        rng = np.random.default_rng(seed)
        waves, labels = [], []
        for phonemes in self._tts.phonemize(for_teacher(text)):
            ids = self._tts.ids(phonemes)
            wave, label = self._say(ids, seed, rng)
            waves.append(wave)
            labels.append(label)
        if not waves:
            return np.zeros(0, np.int16), np.zeros(0, np.uint8)
        return self._trim(np.concatenate(waves), np.concatenate(labels), rng)

    def _trim(
        self, wave: np.ndarray, labels: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        level = np.abs(wave[: len(wave) // 120 * 120]).reshape(-1, 120).max(1)
        loud = np.flatnonzero(level > 0.004)
        if not len(loud):
            return np.zeros(0, np.int16), np.zeros(0, np.uint8)
        # The speech begins at a random offset in its frame, so that no phase is preferred.
        lead = self._data.lead_s + rng.uniform(0, 0.04)
        begin = max(0, int(loud[0] * 120 - lead * SAMPLE_RATE))
        end = int((loud[-1] + 1) * 120 + self._data.tail_s * SAMPLE_RATE)
        count = -(-(end - begin) // FRAME)
        samples = np.zeros(count * FRAME, np.float32)
        piece = wave[begin : begin + len(samples)]
        samples[: len(piece)] = piece
        centres = (begin + LABEL // 2 + LABEL * np.arange(2 * count)) // UNIT
        padded = np.append(labels, np.zeros(1, np.uint8))
        loudened = np.clip(samples * self._gain, -1, 1) * 32767
        return loudened.round().astype(np.int16), padded[np.minimum(centres, len(labels))]


def voices_of(data: SimpleNamespace, name: str) -> Callable[[int], Voice]:
    """The voice that reads a line: one for all lines, or a training voice."""
    if name == TRAINING_VOICES:
        return Voices(Path(data.voices)).__getitem__
    voice = Voice.from_file(Path(data.styles) / f"{name}.bin")
    return lambda line: voice


def read_lines(
    teacher: Teacher, lines: list[tuple[int, str]]
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Number, audio and labels of every line that is neither too short nor too long."""
    for number, text in lines:
        try:
            wave, label = teacher.read(text, seed=number)
        except Exception as error:  # one bad line must not affect the others
            print(f"line {number} failed: {error}", flush=True)
            continue
        if 2 * FRAME <= len(wave) <= 30 * SAMPLE_RATE:
            yield number, wave, label


def read_shard(folder: Path, index: int, teacher: Teacher, lines: list[tuple[int, str]]) -> None:
    audio, labels, kept, frames = [], [], [], []
    for number, wave, label in read_lines(teacher, lines):
        audio.append(wave)
        labels.append(label)
        kept.append(number)
        frames.append(len(wave) // FRAME)
    if not kept:
        audio, labels = [np.zeros(0, np.int16)], [np.zeros(0, np.uint8)]
    path = folder / f"{index:05d}.npz"
    np.savez(
        f"{path}.tmp.npz",
        audio=np.concatenate(audio),
        labels=np.concatenate(labels),
        lines=np.asarray(kept, np.int32),
        frames=np.asarray(frames, np.int32),
    )
    os.rename(f"{path}.tmp.npz", path)


def work(data: SimpleNamespace, jobs: Any, folder: Path) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    teachers: dict[int, Teacher] = {}
    while (job := jobs.get()) is not None:
        speaker = job[1][0][0] // SPEAKER
        if (folder / STOP).exists() or (folder / f"{STOP}.{speaker}").exists():
            return
        if speaker not in teachers:
            teachers[speaker] = Teacher(data, speaker)
        read_shard(folder, job[0], teachers[speaker], job[1])
        print(f"shard {job[0]}", flush=True)


def plan(data: SimpleNamespace) -> list[list[tuple[int, str]]]:
    """The lines of each shard, dev lines first. A shard never mixes dev lines or speakers."""
    lines = load_lines(Path(data.lines))[: data.max_lines or None]
    dev, train = [], []
    for speaker in range(len(data.speakers)):
        numbered = list(enumerate(lines, start=speaker * SPEAKER))
        most = (data.num_dev_other, data.num_lines_other) if speaker else (None, None)
        dev.append(numbered[: data.num_dev][: most[0]])
        train.append(numbered[data.num_dev :][: most[1]])
    # Short shards for Kokoro, which is slow: an unfinished shard is lost at the time limit.
    sizes = [data.lines_per_shard, *[max(1, data.lines_per_shard // 8)] * len(data.speakers[1:])]
    return [
        part[i : i + size]
        for part, size in zip(dev + train, 2 * sizes, strict=True)
        for i in range(0, len(part), size)
    ]


def start_synthesis(args: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start this program beside a stage with the same `args`. Existing shards are kept."""
    command = [sys.executable, "-m", "recipes.mini_voice.synthesize"]
    command += ["--smoke"] * args.smoke
    for item in args.set:
        command += ["--set", item]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", type=int, metavar="SPEAKER", help="index in data.speakers")
    args = options.parse_args()
    data = load_settings(args.smoke, args.set).data
    begun, folder = time.perf_counter(), Path(data.shards)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STOP).unlink(missing_ok=True)
    context = multiprocessing.get_context("spawn")
    jobs = context.Queue()
    shards = plan(data)
    for index, lines in enumerate(shards):
        is_wanted = args.only in (None, lines[0][0] // SPEAKER)
        if is_wanted and not (folder / f"{index:05d}.npz").exists():
            jobs.put((index, lines))
    workers = [
        context.Process(target=work, args=(data, jobs, folder)) for _ in range(data.num_workers)
    ]
    for worker in workers:
        jobs.put(None)
        worker.start()
    for worker in workers:
        worker.join()
    print(f"synthesis: {len(shards)} shards in {time.perf_counter() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
