"""The options that commands share, in groups. Argparse only: help must not wait for torch."""

from __future__ import annotations

import argparse


def add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        help="a hub id or a checkpoint folder; default: VIVACE_MODEL, else the embedded voice",
    )
    group.add_argument("--revision", help="of a hub id: a branch, tag or commit")
    group.add_argument("--offline", action="store_true", help="use the local cache only")


def add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machine")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:0, mps")
    group.add_argument("--dtype", default="auto", help="auto, bfloat16, float32")
    group.add_argument("--weights", default="full", help="full, fp8; see docs/performance.md")
    group.add_argument("--backend", default="auto", help="see vivace doctor; default: auto")
    group.add_argument(
        "--threads", type=int, metavar="N", help="of the CPU; default: 1 for a small model"
    )


def add_speech(parser: argparse.ArgumentParser, *, instruct: str) -> None:
    group = parser.add_argument_group("speech")
    group.add_argument("--language", default="auto", help="of the text; default: auto")
    group.add_argument("--instruct", metavar="WORDS", help=instruct)
    group.add_argument(
        "--speed", type=float, default=1.0, metavar="X", help="0.25 to 4; the pitch is kept"
    )
    group.add_argument("--clean", action="store_true", help="take out markdown and links")
    group.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="English numbers, dates, capitals and signs as words; default: as the model wants",
    )
    group.add_argument(
        "--lexicon", metavar="FILE", help='how words are read: word = "respelling", .toml or .csv'
    )
    group.add_argument("--keep-emoji", action="store_true", help="speak emoji; else they are not")
    group.add_argument(
        "--on-unsupported",
        choices=("error", "skip"),
        default="skip",
        help="letters that the model does not read: skip them with a warning, or fail; "
        "default: skip (error for books)",
    )
    group.add_argument(
        "--live",
        choices=("word", "sentence"),
        help="a text that is still being written: as it comes, or by sentences; default: the "
        "model's",
    )
    group.add_argument(
        "--text-layout", choices=("whole", "streamed"), help="default: the official one"
    )


def add_voice_option(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("voice")
    group.add_argument(
        "--voice",
        metavar="NAME|FILE",
        help="a preset speaker, a voice you keep, a .safetensors file, or a recording to clone",
    )
    add_transcript(group)


def add_dialogue(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("dialogue")
    group.add_argument(
        "--dialogue",
        metavar="FILE",
        help="speak a script of lines `Name: text`, of FILE or of - as stdin; `Name = voice` first",
    )
    group.add_argument(
        "--gap", type=float, metavar="S", help="seconds between lines; default: as people do"
    )
    group.add_argument(
        "--overlap", type=float, metavar="S", help="seconds by which speakers interrupt each other"
    )
    group.add_argument(
        "--tracks", action="store_true", help="beside -o FILE, FILE-Name for each speaker"
    )


def add_transcript(parser: argparse._ActionsContainer) -> None:
    words = parser.add_mutually_exclusive_group()
    words.add_argument(
        "--ref-text",
        "--transcript",
        dest="transcript",
        metavar="WORDS",
        help="every word of the recording, for a closer voice",
    )
    words.add_argument(
        "--ref-text-file",
        "--transcript-file",
        dest="transcript_file",
        metavar="FILE",
        help="the same, from a text file",
    )


def add_enrolment(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--licence", help="what the kept voice may be used for, as a note")
    parser.add_argument("--replace", action="store_true", help="a kept voice of the same name")
    parser.add_argument(
        "--no-append-silence",
        dest="append_silence",
        action="store_false",
        help="encode the recording as it ends, as the official package does",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "output", "Without -o and --format it plays; where nothing can play, it writes a file."
    )
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="its ending picks the format; - is stdout; default: speech.wav or the next free",
    )
    group.add_argument("--format", help="wav, pcm, flac, mp3, ogg, opus or aac, without a FILE")
    group.add_argument("--force", action="store_true", help="overwrite FILE")
    group.add_argument(
        "--subtitles",
        metavar="FILE|FORMAT",
        help="write when each word is heard: a .srt, .vtt or .json FILE, or one beside that of -o",
    )
    group.add_argument("--play", action="store_true", help="play it, beside -o too")
    group.add_argument(
        "--stream",
        action="store_true",
        help="write audio while it is made, and speak stdin while it is written",
    )
    add_chunks(group)
    add_report(group)


def add_chunks(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--chunk-frames",
        type=int,
        metavar="N",
        help="of 80 ms, made at a time; default: 1, 2, 4, then 8, so that sound comes early",
    )


def add_report(group: argparse._ActionsContainer) -> None:
    group.add_argument("--json", action="store_true", help="print the result as JSON")
    group.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """One option for every field of SamplingParams."""
    group = parser.add_argument_group("sampling", "The checkpoint's own unless given.")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same codes")
    group.add_argument(
        "--temperature", type=float, metavar="X", help="0 is greedy; else 1e-5 to 100"
    )
    group.add_argument("--top-k", type=int, metavar="N", help="0 keeps every code")
    group.add_argument("--top-p", type=float, metavar="X", help="1e-5 to 1")
    group.add_argument("--repetition-penalty", type=float, metavar="X", help="0.5 to 10; 1 is none")
    group.add_argument(
        "--predictor-temperature", type=float, metavar="X", help="of the residual codebooks"
    )
    group.add_argument("--predictor-top-k", type=int, metavar="N", help="of the residual codebooks")
    group.add_argument(
        "--predictor-top-p", type=float, metavar="X", help="of the residual codebooks"
    )
    group.add_argument("--min-frames", type=int, metavar="N", help="of 80 ms each")
    group.add_argument("--max-frames", type=int, metavar="N", help="of 80 ms each")
