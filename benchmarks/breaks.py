"""Counts sentences that are lost when two of them are joined by a line break.

    python benchmarks/breaks.py corpus/dev.txt --json benchmarks/results/breaks-mini.json
    python benchmarks/breaks.py corpus/dev.txt --pairs 45 --as-written  # the control

Pair n takes two unseen sentences and the n-th kind of break, in turn. Every second round the text
is fed word by word. Whisper-base (benchmarks/judges.py) transcribes the speech. A sentence is
misread if fewer than half of its words are in the transcript, in their order. Whisper sometimes
omits a sentence after a pause, so such a pair is transcribed again in two parts, divided by its
word timings. A sentence is lost if its part has fewer than half as many words as the sentence.
A second run continues after the last pair in the JSON file and judges misread pairs again. The
file names sentences by their lines. Lost and misread ones are printed.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from words import count_errors, spellings

from vivace import TTS
from vivace.audio.clip import Audio
from vivace.cli.bench.machine import machine
from vivace.options import SpeechOptions
from vivace.script.request import Request

Row = dict[str, Any]

LOST = 0.5  # share of its words below which a sentence counts as lost
NO_STOP = re.compile(r"[.!?]+\Z")

KINDS: dict[str, Callable[[str, str], str]] = {
    "space": "{} {}".format,
    "blank line": "{}\n\n{}".format,
    "line feed": "{}\n{}".format,
    "carriage returns": "{}\r\n\r\n{}".format,
    "paragraph separator": "{}\u2029{}".format,
    "line separator": "{}\u2028{}".format,
    "rule": "{}\n\n* * *\n\n{}".format,
    "list": "- {}\n- {}".format,
    "heading": lambda first, second: f"# {NO_STOP.sub('', first)}\n\n{second}",
    "line without a stop": lambda first, second: f"{NO_STOP.sub('', first)}\n{second}",
    "table": lambda first, second: f"| {first} |\n|---|\n| {second} |",
    "wrapped lines": lambda first, second: textwrap.fill(f"{first} {second}", 44),
    "many blank lines": "{}\n \n\t\n\n{}".format,
    "tab": "{}\t{}".format,
    "form feed": "{}\f{}".format,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sentences", type=Path, help="one sentence per line")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--as-written", action="store_true", help="keep breaks, without guard")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = _read_rows(arguments.json)
    sentences = arguments.sentences.read_text(encoding="utf-8").splitlines()
    from judges import Recogniser

    recognise = Recogniser(threads=1)
    with TTS.load(device="cpu") as tts:
        again = [number for number, row in enumerate(rows) if min(row["shares"]) < LOST]
        for number in [*again, *range(len(rows), arguments.pairs)]:
            pair = plan_pair(number, sentences)
            audio = speak(tts, pair, is_raw=arguments.as_written)
            transcript = recognise(audio.samples, audio.sample_rate)
            row = judge(pair, transcript)
            if min(row["shares"]) < LOST and not arguments.as_written:
                row |= recognise_parts(recognise, audio, pair)
            row |= pair.as_row() | {"audio_s": round(audio.duration_s, 2)}
            rows[number : number + 1] = [row]
            if min(row["shares"]) < LOST:
                kind = "lost" if is_lost(row) else "misread"
                print(f"{kind}: pair {number}, {pair}, {row.get('transcripts')}", flush=True)
            report = {"benchmark": "breaks", "machine": machine(), **summarise(rows), "rows": rows}
            if arguments.json:
                arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summarise(rows), indent=1))


def _read_rows(path: Path | None) -> list[Row]:
    if path is None or not path.exists():
        return []
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


@dataclass(frozen=True)
class Pair:
    line: int  # of the first sentence, from 0
    kind: str
    is_live: bool  # the text is fed word by word
    texts: tuple[str, str]

    def as_row(self) -> Row:
        return {"line": self.line, "kind": self.kind, "is_live": self.is_live}


def plan_pair(number: int, sentences: list[str]) -> Pair:
    line = 2 * number % (len(sentences) - 1)
    is_live = number // len(KINDS) % 2 == 1
    kind = list(KINDS)[number % len(KINDS)]
    return Pair(line, kind, is_live, (sentences[line], sentences[line + 1]))


def speak(tts: TTS, pair: Pair, *, is_raw: bool) -> Audio:
    text = KINDS[pair.kind](*pair.texts)
    if is_raw:
        voice = tts.speakers[0]
        options = SpeechOptions(seed=pair.line, guard=False)
        return tts.loaded.open(Request(text=text, voice=voice, options=options)).collect()
    clean = pair.kind in ("list", "heading", "table")
    pieces = iter(re.findall(r"\s*\S+", text))
    text_or_pieces = pieces if pair.is_live else text
    return tts.speak(text_or_pieces, seed=pair.line, clean=clean, timings=True)


def recognise_parts(recognise: Callable[..., str], audio: Audio, pair: Pair) -> Row:
    """Transcribe the two sentences apart, divided before the second one's first word.

    `present` is the number of words in each transcript, divided by the sentence's number of words.
    """
    words = audio.words or ()
    num_first = len(pair.texts[0].split())
    if len(words) <= num_first:
        return {"present": [1.0, 0.0]}
    cut = round((words[num_first].start_s - 0.1) * audio.sample_rate)
    parts = (audio.samples[:cut], audio.samples[cut:])
    transcripts = [recognise(part, audio.sample_rate) for part in parts]
    present = [
        len(spellings(transcript)[0]) / max(1, len(spellings(text)[0]))
        for transcript, text in zip(transcripts, pair.texts, strict=True)
    ]
    row = judge(pair, " ".join(transcripts))
    return row | {"present": [round(share, 2) for share in present], "transcripts": transcripts}


def judge(pair: Pair, transcript: str) -> Row:
    """Return the share of each sentence's words in the transcript, and all word errors."""
    wanted = [spellings(text)[0] for text in pair.texts]
    together = [word for words in wanted for word in words]
    matcher = difflib.SequenceMatcher(None, together, spellings(transcript)[0], autojunk=False)
    found = {place for a, _, size in matcher.get_matching_blocks() for place in range(a, a + size)}
    num_first = len(wanted[0])
    shares = [
        sum(place in found for place in places) / max(1, len(places))
        for places in (range(num_first), range(num_first, len(together)))
    ]
    count = count_errors(" ".join(pair.texts), transcript)
    return {
        "shares": [round(share, 2) for share in shares],
        "errors": count.errors,
        "words": count.words,
    }


def summarise(rows: list[Row]) -> Row:
    """Lost sentences and word errors, in all and for each kind of break."""
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in KINDS}
    figures = {kind: _figures(some) for kind, some in kinds.items() if some}
    return {**_figures(rows), "kinds": figures}


def is_lost(row: Row) -> bool:
    """Whether a sentence is missing: few of its words are right, and few words stand in for it."""
    shares: list[float] = row["shares"]
    present: list[float] = row.get("present", shares)
    return min(shares) < LOST and min(present) < LOST


def _figures(rows: list[Row]) -> Row:
    return {
        "pairs": len(rows),
        "lost_sentences": sum(map(is_lost, rows)),
        "misread_sentences": sum(
            share < LOST for row in rows for share in row["shares"] if not is_lost(row)
        ),
        "word_error_percent": round(
            100 * sum(row["errors"] for row in rows) / max(1, sum(row["words"] for row in rows)), 1
        ),
    }


if __name__ == "__main__":
    main()
