"""Measures the completeness check: false alarms, controls that are found, losses that are repaired.

    pip install -e ".[quality]" soxr
    python benchmarks/completeness.py SENTENCES --json build/completeness.json

SENTENCES is a text file with one correct sentence per line. The command speaks

- single sentences without the check, and counts those in which the check reports a fault. Whisper
  transcribes the sentences with a report: if it misses words too, the alarm is not false;
- three sentences as one utterance, damages the codes in five ways (`guarded_voice.damage`), reads
  the attention over the damaged codes, and counts the controls that are found;
- single sentences whose end of speech is drawn at a random word boundary inside the text, and pairs
  of sentences joined by a blank line, after which the voice often stops. A loss is repaired if no
  word is reported missing and Whisper finds at most one word error more than in whole speech.

Everything spoken is kept in a work file, so that the command can be interrupted, continued with
larger numbers, and repeated with other limits of the check.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from guarded_voice import Codes, GuardedVoice, Places, Spoken, arrivals, damage, find_faults
from words import count_errors

from vivace import TTS
from vivace.cli.bench.machine import machine
from vivace.engine.utterances.follower import MIN_SHARE
from vivace.speech import SAMPLE_RATE

Row = dict[str, Any]
SENTENCES_PER_CONTROL = 3
NUM_OTHER_FRAMES = 63  # of another sentence, as an invented tail of 5 s
PAIR_SEED = 10_000
LOST_SHARE = 0.2  # of words wrong or missing: the sentence was not spoken correctly


def main() -> None:
    arguments = parse_arguments()
    lines = [line for line in arguments.lines.read_text().splitlines() if line.strip()]
    with TTS.load(device="cpu") as tts:
        run = Run(GuardedVoice(tts), arguments.work, lines)
        report = {
            "benchmark": "completeness",
            "machine": machine(),
            "voice": "embedded",
            "judge": "Whisper-base int8 (faster-whisper, beam 5)",
            "false_alarms": run.measure_alarms(arguments.num),
            "controls": run.measure_controls(arguments.controls),
            "repairs": run.measure_repairs(arguments.losses),
            "blank_lines": run.measure_pairs(arguments.pairs),
        }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(report, indent=1, ensure_ascii=False))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lines", type=Path, help="one sentence per line")
    parser.add_argument("--num", type=int, default=500, help="single sentences without the check")
    parser.add_argument("--controls", type=int, default=20, help="utterances that are damaged")
    parser.add_argument("--losses", type=int, default=50, help="sentences that are ended early")
    parser.add_argument("--pairs", type=int, default=50, help="pairs joined by a blank line")
    parser.add_argument("--work", type=Path, default=Path("build/completeness.jsonl"))
    parser.add_argument("--json", type=Path, default=Path("build/completeness.json"))
    return parser.parse_args()


class Run:
    """Speaks what the work file does not have yet, and judges it."""

    def __init__(self, voice: GuardedVoice, work: Path, lines: Sequence[str]) -> None:
        self._voice, self._work, self._lines = voice, work, lines
        work.parent.mkdir(parents=True, exist_ok=True)
        rows = work.read_text().splitlines() if work.exists() else []
        self._rows: dict[str, Row] = {row["key"]: row for row in map(json.loads, rows)}
        self._recognise: Callable[..., str] | None = None

    # -- measurements ------------------------------------------------------------------------

    def measure_alarms(self, num: int) -> Row:
        kinds: Counter[str] = Counter()
        reports, num_frames = [], 0
        for line, text in enumerate(self._lines[:num]):
            row = self._spoken(f"single {line}", text, seed=line)
            num_frames += len(row["codes"])
            faults = find_faults(self._voice.follower(text), row["places"])
            if faults and (share := self._lost_share(row)) <= LOST_SHARE:
                kinds[faults[0].kind] += 1
                reports.append({"line": line, "fault": faults[0].kind, "wer": round(share, 2)})
            elif faults:
                kinds["true"] += 1
        num = min(num, len(self._lines))
        return {
            "sentences": num,
            "audio_s": round(num_frames * 0.08, 1),
            "true_alarms": kinds.pop("true", 0),
            "false_alarms": len(reports),
            "false_alarms_percent": _percent(len(reports), num),
            "kinds": dict(kinds),
            "which": reports,
        }

    def measure_controls(self, num: int) -> Row:
        found: dict[str, Counter[str]] = {}
        for index in range(num):
            first = index * SENTENCES_PER_CONTROL
            texts = self._lines[first : first + SENTENCES_PER_CONTROL]
            text = " ".join(texts)
            row = self._spoken(f"triple {index}", text, seed=index)
            for name, codes in self._damaged(row, texts).items():
                places = self._voice.read_places(text, codes)
                faults = find_faults(self._voice.follower(text), places)
                kind = faults[0].kind if faults else "not found"
                found.setdefault(name, Counter())[kind] += 1
        return {
            name: {"of": num, "found": num - kinds["not found"], "as": dict(kinds)}
            for name, kinds in found.items()
        }

    def measure_repairs(self, num: int) -> Row:
        draw, outcomes = random.Random(1), []
        for line, text in enumerate(self._lines[:num]):
            whole = self._spoken(f"single {line}", text, seed=line)
            end_at = self._boundary(text, whole["places"], draw)
            key = f"cut {line} at {end_at}"
            row = self._spoken(key, text, seed=line, is_checked=True, end_at=end_at)
            outcomes.append(self._judge_repair(row, whole))
        return _outcome(outcomes)

    def measure_pairs(self, num: int) -> Row:
        outcomes, num_lost = [], 0
        for index in range(num):
            pair = self._lines[-2 * index - 2 :][:2]
            seed = PAIR_SEED + index
            plain = self._spoken(f"space {index}", " ".join(pair), seed=seed)
            broken = self._spoken(f"blank {index}", "\n\n".join(pair), seed=seed)
            if self._errors(broken) <= self._errors(plain) + 1:
                continue
            num_lost += 1
            key, text = f"checked blank {index}", "\n\n".join(pair)
            outcomes.append(
                self._judge_repair(self._spoken(key, text, seed=seed, is_checked=True), plain)
            )
        return {"pairs": num, "lost_without_the_check": num_lost, **_outcome(outcomes)}

    # -- speech ------------------------------------------------------------------------------

    def _spoken(
        self, key: str, text: str, seed: int, *, is_checked: bool = False, end_at: int | None = None
    ) -> Row:
        if key not in self._rows:
            began = time.perf_counter()
            spoken = self._voice.speak(text, seed, is_checked=is_checked, end_at=end_at)
            self._keep(_as_row(key, text, spoken, time.perf_counter() - began))
        return self._rows[key]

    def _keep(self, row: Row) -> None:
        self._rows[row["key"]] = row
        with self._work.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _damaged(self, row: Row, texts: Sequence[str]) -> dict[str, Codes]:
        encode = self._voice.tts.tokenizer.encode
        frames = arrivals(row["places"], len(encode(row["text"])), MIN_SHARE)
        first, end = (frames[len(encode(" ".join(texts[:count])))] for count in (1, 2))
        codes = np.array(row["codes"])
        other = self._spoken("single 0", self._lines[0], seed=0)["codes"]
        tail = np.resize(np.array(other), (NUM_OTHER_FRAMES, codes.shape[1]))
        return damage(codes, first, end, self._quietest(codes), tail)

    def _quietest(self, codes: Codes) -> Codes:
        samples = self._voice.render(codes).reshape(len(codes), -1)
        frame = int(np.square(samples).sum(1).argmin())
        return codes[frame : frame + 1]

    def _boundary(self, text: str, places: Places, draw: random.Random) -> int:
        """The frame at which a word that is not the first begins."""
        marks = list(self._voice.follower(text)._ids)
        frames = arrivals(places, len(marks), MIN_SHARE)
        starts = [frame for mark, frame in zip(marks, frames, strict=False) if mark.begins_word]
        return draw.choice([frame for frame in starts if frame > starts[0]] or [len(places) // 2])

    # -- judgements --------------------------------------------------------------------------

    def _judge_repair(self, row: Row, whole: Row) -> Row:
        is_heard = self._errors(row) <= self._errors(whole) + 1
        return {
            "is_reported": bool(row["missing"]),
            "is_heard": is_heard,
            "is_repaired": is_heard and not row["missing"],
            "retries": row["retries"],
        }

    def _errors(self, row: Row) -> int:
        return count_errors(row["text"], self._heard(row)).errors

    def _lost_share(self, row: Row) -> float:
        count = count_errors(row["text"], self._heard(row))
        return count.errors / max(1, count.words)

    def _heard(self, row: Row) -> str:
        """Whisper's transcript; it is kept in the work file too."""
        key = f"{row['key']}: transcript"
        if key not in self._rows:
            if self._recognise is None:
                from judges import Recogniser

                self._recognise = Recogniser(threads=1)
            samples = self._voice.render(np.array(row["codes"]))
            self._keep({"key": key, "text": self._recognise(samples, SAMPLE_RATE)})
        transcript: str = self._rows[key]["text"]
        return transcript


def _as_row(key: str, text: str, spoken: Spoken, wall_s: float) -> Row:
    return {
        "key": key,
        "text": text,
        "codes": spoken.codes.tolist(),
        "places": [(place, round(share, 3)) for place, share in spoken.places],
        "finish_reason": spoken.finish_reason,
        "retries": spoken.num_retries,
        "missing": spoken.missing,
        "wall_s": round(wall_s, 2),
    }


def _outcome(outcomes: Sequence[Row]) -> Row:
    num, num_repaired = len(outcomes), sum(one["is_repaired"] for one in outcomes)
    return {
        "losses": num,
        "repaired": num_repaired,
        "repaired_percent": _percent(num_repaired, num),
        "reported_missing": sum(one["is_reported"] for one in outcomes),
        "lost_without_a_report": sum(
            not (one["is_heard"] or one["is_reported"]) for one in outcomes
        ),
        "retries": sum(one["retries"] for one in outcomes),
    }


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 1) if whole else None


if __name__ == "__main__":
    main()
