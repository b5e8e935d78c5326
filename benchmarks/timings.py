"""Measures the distance of word timings from forced aligners, and their CPU cost.

    pip install -e ".[quality]" pocketsphinx
    python benchmarks/timings.py SENTENCES --num 200 --json build/timings.json

Whisper-base aligns the known words by the attention of its decoder, PocketSphinx (`--sphinx`) by a
hidden Markov model of phonemes. Both have errors of some tens of milliseconds, so their distance
from each other is measured too. A sentence is skipped if a word is not written as it is spoken, if
an aligner finds no alignment, or if the speech is lost.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from judges import Recogniser, resample
from numpy.typing import NDArray

from vivace import TTS
from vivace.cli.bench.machine import machine
from vivace.text.normalize import normalize_text

Times = list[tuple[float, float]]
OURS = "vivace"
NUM_TIMED = 10  # sentences for the CPU cost
MIN_COLUMNS = 400  # 4 s; padding to 30 s takes eight times as long and shifts times by 10 ms


class WhisperAligner:
    """Aligns words by the cross-attention of Whisper's decoder."""

    def __init__(self) -> None:
        from faster_whisper.tokenizer import Tokenizer

        self._model = Recogniser(threads=1).model
        is_multilingual = self._model.model.is_multilingual
        self._tokenizer = Tokenizer(
            self._model.hf_tokenizer, is_multilingual, task="transcribe", language="en"
        )

    def __call__(self, words: list[str], samples: NDArray[np.float32], rate: int) -> Times | None:
        from faster_whisper.audio import pad_or_trim

        features = self._model.feature_extractor(resample(samples, rate))
        encoded = self._model.encode(pad_or_trim(features, max(MIN_COLUMNS, features.shape[-1])))
        ids = self._tokenizer.encode(" " + " ".join(words))
        [parts] = self._model.find_alignment(self._tokenizer, [ids], encoded, features.shape[-1])
        times: Times = []
        for part in parts:
            if not re.search(r"\w", part["word"]):
                continue
            if part["word"].startswith(" "):
                times.append((float(part["start"]), float(part["end"])))
            elif times:  # "'s", "-known"
                times[-1] = (times[-1][0], float(part["end"]))
        return times if len(times) == len(words) else None


class SphinxAligner:
    """Forced alignment with PocketSphinx, whose dictionary must have every word."""

    def __init__(self) -> None:
        from pocketsphinx import Decoder, get_model_path

        dictionary = Path(get_model_path()) / "en-us" / "cmudict-en-us.dict"
        self._known = {line.split()[0] for line in dictionary.read_text().splitlines() if line}
        self._decoder = Decoder(lm=None, loglevel="FATAL")

    def __call__(self, words: list[str], samples: NDArray[np.float32], rate: int) -> Times | None:
        keys = [re.sub(r"[^a-z']", "", word.lower()).strip("'") for word in words]
        if not self._known.issuperset(keys):
            return None
        pcm = (np.clip(resample(samples, rate), -1, 1) * 32767).astype(np.int16).tobytes()
        try:
            self._decoder.set_align_text(" ".join(keys))
            self._decoder.start_utt()
            self._decoder.process_raw(pcm, full_utt=True)
            self._decoder.end_utt()
            parts = [part for part in self._decoder.seg() if part.word[0] not in "<(["]
        except RuntimeError:
            return None
        times = [(part.start_frame / 100, (part.end_frame + 1) / 100) for part in parts]
        return times if len(times) == len(words) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--num", type=int, default=200, help="number of sentences")
    parser.add_argument("--skip", type=int, default=0, help="lines before the first")
    parser.add_argument("--layout", choices=("whole", "streamed"), default="whole")
    parser.add_argument("--sphinx", action="store_true", help="compare with PocketSphinx too")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    lines = arguments.lines.read_text().splitlines()[arguments.skip :]
    aligners: dict[str, Any] = {"whisper": WhisperAligner()}
    if arguments.sphinx:
        aligners["pocketsphinx"] = SphinxAligner()
    found: dict[str, list[Times]] = {name: [] for name in (OURS, *aligners)}
    num_lost = 0
    with TTS.load(device="cpu") as tts:
        result: dict[str, Any] = {"machine": machine(), "layout": arguments.layout}
        for seed, line in enumerate(lines):
            if (times := align(tts, line, seed, arguments.layout, aligners)) is None:
                num_lost += 1
                continue
            for name, one in times.items():
                found[name].append(one)
            num_found = len(found[OURS])
            if num_found % 20 == 0 or num_found == arguments.num:
                write(result, found, num_lost, arguments.json)
            if num_found == arguments.num:
                break
        result["cost"] = measure_cost(tts, lines[:NUM_TIMED])
        write(result, found, num_lost, arguments.json)
    print(json.dumps(result, indent=2))


def align(
    tts: TTS, line: str, seed: int, layout: Any, aligners: dict[str, Any]
) -> dict[str, Times] | None:
    """The times of every word from Vivace and each aligner; None if an aligner fails."""
    words = [word for word in line.split() if re.search(r"\w", word)]
    spoken = [word for word in normalize_text(line).split() if re.search(r"\w", word)]
    if len(spoken) != len(words):
        return None
    audio = tts.speak(line, seed=seed, timings=True, trim=False, text_layout=layout)
    times: dict[str, Times] = {OURS: [(word.start_s, word.end_s) for word in audio.words or ()]}
    for name, aligner in aligners.items():
        times[name] = aligner(spoken, audio.samples, audio.sample_rate) or []
    return times if all(len(one) == len(words) for one in times.values()) else None


def write(
    result: dict[str, Any], found: dict[str, list[Times]], num_lost: int, path: Path | None
) -> None:
    """Write the intermediate results."""
    result["sentences"], result["left_out"] = len(found[OURS]), num_lost
    result["words"] = sum(map(len, found[OURS]))
    result["errors"] = {
        f"{a} - {b}": compare(found[a], found[b]) for a, b in combinations(found, 2)
    }
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")


def compare(ours: list[Times], others: list[Times]) -> dict[str, Any]:
    """Distances of starts and ends, in milliseconds."""
    pairs = np.asarray([a for one in ours for a in one]) - [b for one in others for b in one]
    both = {"start": pairs[:, 0], "end": pairs[:, 1], "all": pairs.ravel()}
    return {name: figures(1000 * errors) for name, errors in both.items()}


def figures(errors: NDArray[np.float64]) -> dict[str, float]:
    sizes = np.abs(errors)
    return {
        "mean_ms": round(float(sizes.mean()), 1),
        "median_ms": round(float(np.median(sizes)), 1),
        "bias_ms": round(float(np.median(errors)), 1),
        "within_100_ms_percent": round(100 * float((sizes <= 100).mean()), 1),
        "within_200_ms_percent": round(100 * float((sizes <= 200).mean()), 1),
    }


def measure_cost(tts: TTS, lines: list[str]) -> dict[str, float]:
    """CPU seconds of speech with and without timings, in alternating runs."""
    spent = {False: 0.0, True: 0.0}
    audio_s = 0.0
    for seed, line in enumerate(lines):
        for timings in spent:
            began = time.process_time()
            audio = tts.speak(line, seed=seed, timings=timings)
            spent[timings] += time.process_time() - began
        audio_s += audio.duration_s
    return {
        "audio_s": round(audio_s, 2),
        "cpu_s_without": round(spent[False], 2),
        "cpu_s_with": round(spent[True], 2),
        "more_percent": round(100 * (spent[True] / spent[False] - 1), 1),
    }


if __name__ == "__main__":
    main()
