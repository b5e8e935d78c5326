"""Speaks a long text as one stream and checks words, memory and seams.

    python benchmarks/long_text.py speak sentences.txt --chars 100000 --out build/long
    python benchmarks/long_text.py judge build/long --json benchmarks/results/long-text.json
    python benchmarks/long_text.py seams build/long

- `speak` streams the first lines of a file as one text into `speech.pcm` (16 bits, mono). For each
  utterance it records the position in the file, the sentences and the memory in use.
- `judge` transcribes each utterance (a window shorter than Whisper's 30 s) and counts word errors.
  `--first 20` judges at most 20 windows per run, `--every 12` one in twelve.
- `seams` compares DistillMOS of the 4 s around every seam with 4 s inside long utterances. An
  audible seam gets a lower rating.

`speak` and `judge` resume where they stopped. After an interruption `speak` starts another stream;
`streams` in the report counts them.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from intervals import NUM_DRAWS, interval
from quality import append_row, read_rows
from quality_figures import LOST
from report import write_report
from words import count_errors, spellings

Row = dict[str, Any]

TEXT, SPEECH, WINDOWS, VERDICTS = "text.txt", "speech.pcm", "windows.jsonl", "verdicts.jsonl"
TOGETHER = 20  # neighbouring windows that are counted as one text
SEED = 7


def main() -> None:
    arguments = parse_arguments()
    arguments.run(arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("speak", help="a long text to speech in a folder")
    command.set_defaults(run=speak)
    command.add_argument("sentences", type=Path, help="one sentence per line")
    command.add_argument("--chars", type=int, default=100_000)
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--model", help="a folder or hub id; default: the embedded voice")
    command.add_argument("--device", default="auto")
    command = commands.add_parser("judge", help="speech to word errors")
    command.set_defaults(run=judge)
    command.add_argument("folder", type=Path)
    command.add_argument("--first", type=int, help="most windows to judge in this run")
    command.add_argument("--every", type=int, default=1, help="judge every n-th window only")
    command.add_argument("--json", type=Path, help="where to write the report")
    command = commands.add_parser("seams", help="speech to ratings of the seams")
    command.set_defaults(run=seams)
    command.add_argument("folder", type=Path)
    command.add_argument("--json", type=Path, help="the report of `judge`, which is extended")
    return parser.parse_args()


# -- speaking ----------------------------------------------------------------------------------


def speak(arguments: argparse.Namespace) -> None:
    from vivace import TTS

    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    sentences = read_sentences(arguments.sentences, arguments.chars)
    path = folder / TEXT
    if path.exists() and path.read_text().splitlines() != sentences:
        sys.exit(f"{folder} holds another text; choose another folder")
    path.write_text("\n".join(sentences) + "\n")
    rows = read_rows(folder / WINDOWS)
    done = rows[-1]["last"] if rows else 0
    if done == len(sentences):
        sys.exit("all of it is spoken")
    with TTS.load(arguments.model, device=arguments.device) as tts:
        for row in speak_windows(tts, sentences, rows, folder / SPEECH):
            append_row(folder / WINDOWS, row)
            print(f"{row['last']} of {len(sentences)} sentences, {row['rss_mib']:.0f} MiB")


def read_sentences(path: Path, num_chars: int) -> list[str]:
    """The first lines of the file that together have at least `num_chars` characters."""
    lines = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    ends = itertools.accumulate(len(line) + 1 for line in lines)
    needed = next((n for n, end in enumerate(ends, 1) if end > num_chars), None)
    if needed is None:
        sys.exit(f"{path} has fewer than {num_chars} characters")
    return lines[:needed]


def speak_windows(
    tts: Any, sentences: Sequence[str], rows: Sequence[Row], path: Path
) -> Iterator[Row]:
    """Speak the remaining text as one stream. Yields a row for each finished window."""
    done = rows[-1]["last"] if rows else 0
    start = rows[-1]["end"] if rows else 0  # samples
    number = rows[-1]["stream"] + 1 if rows else 0
    left = sentences[done:]
    ends = np.cumsum([len(sentence) + 1 for sentence in left]) / sum(map(len, left), len(left))
    first, end, began = done, start, time.perf_counter()
    with path.open("r+b" if path.exists() else "wb") as file:
        file.seek(2 * start)
        file.truncate()
        stream = tts.stream(" ".join(left), seed=SEED + done)
        for chunk in stream:
            file.write((np.clip(chunk.samples, -1, 1) * 32767).astype("<i2").tobytes())
            end += len(chunk.samples)
            # Progress increases at the end of each utterance, which is also the end of a sentence.
            last = done + int(np.argmin(np.abs(ends - stream.progress))) + 1
            is_seam = len(chunk.samples) and not len(chunk.codes)  # a pause
            if not is_seam and not chunk.is_last:
                continue
            last = len(sentences) if stream.progress == 1 else last
            file.flush()
            yield {
                "stream": number,
                "first": first,
                "last": last,
                "start": start,
                "end": end,
                "rate": tts.sample_rate,
                "rss_mib": rss_mib(),
                "wall_s": round(time.perf_counter() - began, 1),
                "finish_reason": stream.finish_reason,
            }
            first, start = last, end


def rss_mib() -> float:
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise OSError("VmRSS is not available on this system; run the benchmark on Linux")


# -- judging -----------------------------------------------------------------------------------


def judge(arguments: argparse.Namespace) -> None:
    from judges import Recogniser

    folder: Path = arguments.folder
    sentences = (folder / TEXT).read_text().splitlines()
    windows, verdicts = read_rows(folder / WINDOWS), read_rows(folder / VERDICTS)
    left = windows[:: arguments.every][len(verdicts) :][: arguments.first]
    recognise = Recogniser() if left else None
    for window in left:
        assert recognise is not None
        transcript = recognise(read_samples(folder / SPEECH, window), window["rate"])
        verdict = compare(" ".join(sentences[window["first"] : window["last"]]), transcript)
        verdicts.append({"window": len(verdicts), **verdict})
        append_row(folder / VERDICTS, verdicts[-1])
        print(f"window {len(verdicts)} of {len(windows)}: {verdict['errors']} word errors")
    report = summarise(sentences, windows, windows[:: arguments.every], verdicts)
    print(json.dumps(report, indent=1))
    if arguments.json:
        from vivace.cli.bench.machine import machine

        report = {"benchmark": "long_text", "machine": machine(), **report}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_report(arguments.json, report)


def read_samples(path: Path, window: Row) -> Any:
    count = window["end"] - window["start"]
    return np.fromfile(path, "<i2", count, offset=2 * window["start"]).astype(np.float32) / 32768


def compare(text: str, transcript: str) -> Row:
    """Word errors, and a mask of the text's words that the transcript lacks."""
    count = count_errors(text, transcript)
    wanted, found = spellings(text)[0], spellings(transcript)[0]
    missing = np.ones(len(wanted), bool)
    for block in difflib.SequenceMatcher(None, wanted, found, autojunk=False).get_matching_blocks():
        missing[block.a : block.a + block.size] = False
    mask = "".join("1" if is_missing else "0" for is_missing in missing)
    return {"errors": count.errors, "words": count.words, "missing": mask, "transcript": transcript}


def compare_together(
    sentences: Sequence[str], judged: Sequence[Row], verdicts: Sequence[Row]
) -> Iterator[Row]:
    """Judge runs of neighbouring windows.

    An utterance may end inside a line. Judged alone, its window would lack the words of the next.
    """
    begin = 0
    for end in range(1, len(verdicts) + 1):
        is_apart = end == len(verdicts) or judged[end]["first"] != judged[end - 1]["last"]
        if is_apart or end - begin == TOGETHER:
            text = " ".join(sentences[judged[begin]["first"] : judged[end - 1]["last"]])
            yield compare(text, " ".join(verdict["transcript"] for verdict in verdicts[begin:end]))
            begin = end


def summarise(
    sentences: Sequence[str], windows: Sequence[Row], judged: Sequence[Row], verdicts: Sequence[Row]
) -> Row:
    """`judged` are the windows of the verdicts."""
    rates = [verdict["errors"] / max(1, verdict["words"]) for verdict in verdicts]
    runs = list(compare_together(sentences, judged, verdicts))
    masks = "".join(run["missing"] for run in runs)
    memory = [window["rss_mib"] for window in windows]
    settled = memory[len(memory) // 10]
    seconds = windows[-1]["end"] / windows[-1]["rate"]
    walls = {window["stream"]: window["wall_s"] for window in windows}
    return {
        "characters": sum(map(len, sentences)) + len(sentences) - 1,
        "sentences": len(sentences),
        "sentences_spoken": windows[-1]["last"],
        "streams": len(walls),
        "finish_reason": windows[-1]["finish_reason"],
        "audio_s": round(seconds, 1),
        "times_real_time": round(seconds / max(0.1, sum(walls.values())), 2),
        "rss_mib": {
            "after_a_tenth": settled,
            "most_after_that": max(memory[len(memory) // 10 :]),
            "at_the_end": memory[-1],
        },
        "windows": len(windows),
        "windows_judged": len(verdicts),
        "word_error_rate": _share(sum(run["errors"] for run in runs), len(masks)),
        "worst_window": round(max(rates, default=0.0), 4),
        "lost_windows": [n for n, rate in enumerate(rates) if rate > LOST],
        "words_judged": len(masks),
        "missing_word_rate": _share(masks.count("1"), len(masks)),
        "longest_missing_run": max(map(len, masks.split("0")), default=0),
    }


# -- seams -------------------------------------------------------------------------------------


def seams(arguments: argparse.Namespace) -> None:
    from judges import NaturalnessJudge

    rate, path = NaturalnessJudge(), arguments.folder / SPEECH
    groups = [
        np.array([rate(read_samples(path, window), window["rate"]) for window in windows])
        for windows in seam_windows(read_rows(arguments.folder / WINDOWS))
    ]
    if not all(len(group) for group in groups):
        sys.exit(f"{arguments.folder} is too short: it has no seam, or no utterance of 5 s")
    rng = np.random.default_rng(1)
    draws = [[rng.choice(group, len(group)).mean() for group in groups] for _ in range(NUM_DRAWS)]
    report = {
        name: {"windows": len(group), "distillmos": round(float(group.mean()), 2)}
        for name, group in zip(("at_seams", "inside"), groups, strict=True)
    }
    found = {**report, "difference_95_percent": interval([at - inside for at, inside in draws])}
    print(json.dumps(found))
    if arguments.json:
        stored = json.loads(arguments.json.read_text())
        arguments.json.write_text(json.dumps({**stored, "seams": found}, indent=1) + "\n")


def seam_windows(windows: Sequence[Row], seconds: float = 4.0) -> tuple[list[Row], list[Row]]:
    """Windows around seams, and windows inside utterances, half a second away from the ends.

    A window ends with its pause, so the middle of the seam is about 0.4 s before the end.
    """
    rate, last = windows[0]["rate"], windows[-1]["end"]
    size = round(seconds * rate)
    at_seams = [window["end"] - round(0.4 * rate) for window in windows[:-1]]
    inside = [
        (window["start"] + window["end"]) // 2 - rate // 4
        for window in windows
        if window["end"] - window["start"] >= size + rate
    ]
    return _around(at_seams, size, last, rate), _around(inside, size, last, rate)


def _around(middles: Sequence[int], size: int, last: int, rate: int) -> list[Row]:
    starts = [middle - size // 2 for middle in middles]
    return [
        {"start": start, "end": start + size, "rate": rate}
        for start in starts
        if 0 <= start <= last - size
    ]


def _share(count: int, of: int) -> float:
    return round(count / of, 4) if of else 0.0


if __name__ == "__main__":
    main()
