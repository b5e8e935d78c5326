"""Options that several commands share, in groups.

`add_speech` derives its flags from the fields of `vivace.options.StreamOptions`. Nothing here may
import numpy or torch: `--help` must be fast.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vivace.audio.formats import FORMATS
from vivace.cli.command import add_option
from vivace.mark.levels import CHOICES

FORMAT_NAMES = ", ".join(FORMATS)
METAVARS = {"lexicon": "FILE", "instruct": "TEXT"}
HELP = {  # where the documentation for Python does not fit the command line
    "chunk_frames": "frames of 80 ms per chunk; default: 1, 2, 4, then 8",
    "language": "language of the text, such as english, en or en-US; default: auto",
    "lexicon": 'pronunciations in a .toml or .csv file: word = "respelling"',
    "live": "speak text that is still written word by word or sentence by sentence; default: "
    "depends on the checkpoint",
    "seed": "the same seed gives the same speech; default: a new seed",
}
NOT_FLAGS = {  # set by the commands
    *("voice", "split", "guard", "trim", "trim_start", "timings", "mark"),
}


def add_model(parser: argparse.ArgumentParser, *, has_adapter: bool = False) -> None:
    group = parser.add_argument_group("model")
    default = "default: $VIVACE_MODEL or the embedded voice"
    add_option(group, "--model", "NAME|FOLDER", f"Hugging Face id or checkpoint folder; {default}")
    add_hub(group)
    if has_adapter:
        add_option(group, "--adapter", "FILE", "adapter of `vivace finetune` for this model")


def add_hub(group: argparse._ActionsContainer) -> None:
    add_option(group, "--revision", "REVISION", "branch, tag or commit of a Hugging Face id")
    add_option(group, "--offline", None, "use only files in the local cache")


def add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machine")
    for name, default, values in (
        ("device", "auto", "auto, cpu, cuda, cuda:0 or mps"),
        ("dtype", "auto", "auto, bfloat16 or float32"),
        ("weights", "full", "full, fp8 (docs/performance.md), int8 or int4 (docs/cpu.md)"),
        ("backend", "auto", "a backend listed by `vivace doctor`"),
    ):
        text = f"{values}; default: {default}"
        add_option(group, f"--{name}", name.upper(), text, default=default)
    add_option(group, "--threads", "N", "CPU threads; default: 1 for small models", int)


def add_speech(
    parser: argparse.ArgumentParser, leave_out: Collection[str] = (), **defaults: str
) -> None:
    """Add a flag for every speech option, in the groups "speech" and "sampling".

    `defaults` replaces defaults of `StreamOptions`.
    """
    from vivace.options import StreamOptions  # slower to import than all other options
    from vivace.speech import SamplingOptions

    speech = parser.add_argument_group("speech")
    sampling = parser.add_argument_group("sampling", "The defaults come from the checkpoint.")
    hints = get_type_hints(StreamOptions, localns={"VoiceSource": object}, include_extras=True)
    for name, field in StreamOptions.__dataclass_fields__.items():
        if name in NOT_FLAGS or name in leave_out:
            continue
        kind, documentation = get_args(hints[name])[:2]
        group = sampling if name in SamplingOptions.__dataclass_fields__ else speech
        group.add_argument(
            f"--{name.replace('_', '-')}",
            default=defaults.get(name),
            help=HELP.get(name) or help_text(documentation, defaults.get(name, field.default)),
            **flag(name, kind),
        )


def flag(name: str, kind: Any) -> dict[str, Any]:
    """How argparse parses an option of this type."""
    kinds = [each for each in get_args(kind) if each is not NoneType] or [kind]
    if kind is bool:
        return {"action": "store_true"}
    if kinds == [bool]:
        return {"action": argparse.BooleanOptionalAction}
    for number, metavar in ((int, "N"), (float, "X")):
        if number in kinds:
            return {"type": number, "metavar": metavar}
    literal = next((each for each in (kind, *kinds) if get_origin(each) is Literal), None)
    if literal is not None:
        return {"choices": get_args(literal)}
    return {"metavar": METAVARS.get(name, name.upper())}


def help_text(documentation: str, default: object) -> str:
    """The documentation of an option as a line of help."""
    text = documentation.rstrip(".").replace("`", "").replace("None:", "default:")
    if isinstance(default, str | float) and not isinstance(default, bool):
        text += f"; default: {default}"
    return f"{text[0].lower()}{text[1:]}".replace("%", "%%")


def add_voice_option(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("voice")
    text = "preset voice, saved voice, .safetensors file, or recording to clone"
    add_option(group, "--voice", "NAME|FILE", text)
    add_transcript(group)


def add_dialogue(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("dialogue")
    text = "speak a script with lines `Name: text`, after lines `Name = voice`; - is stdin"
    add_option(group, "--dialogue", "FILE", text)
    add_option(group, "--gap", "S", "seconds between lines; default: a natural gap", float)
    add_option(group, "--overlap", "S", "seconds by which lines overlap; default: 0", float)
    add_option(group, "--tracks", None, "also write FILE-Name for each speaker, beside -o")


def add_transcript(parser: argparse._ActionsContainer) -> None:
    words = parser.add_mutually_exclusive_group()
    text = "all words of the recording, for a more similar voice"
    add_option(words, "--ref-text --transcript", "TEXT", text, dest="transcript")
    text = "text file with all words of the recording"
    add_option(words, "--ref-text-file --transcript-file", "FILE", text, dest="transcript_file")


def add_enrolment(parser: argparse._ActionsContainer) -> None:
    add_option(parser, "--licence", "TEXT", "licence note stored with the voice")
    text = "who agreed to the use of the recording, stored with the voice"
    add_option(parser, "--consent", "TEXT", text)
    add_option(parser, "--replace", None, "overwrite a saved voice with the same name")
    add_option(
        parser,
        "--no-append-silence",
        None,
        "do not append 0.5 s of silence to the recording (as in the official package)",
        dest="append_silence",
        action="store_false",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "output",
        "Without -o and --format, the speech is played. If there is no sound output, it is written "
        "to a file.",
    )
    default = "default: speech.wav or the next free name"
    text = f"output file, the extension selects the format; - is stdout; {default}"
    add_option(group, "-o --output", "FILE", text)
    text = f"format of stdout or of the default file: {FORMAT_NAMES}; default: wav"
    add_option(group, "--format", "FORMAT", text)
    add_option(group, "--force", None, "overwrite existing files")
    text = "write word timings to a .srt, .vtt or .json file; srt, vtt or json: beside -o"
    add_option(group, "--subtitles", "FILE|FORMAT", text)
    add_option(group, "--play", None, "play the speech, also with -o")
    text = "write audio while it is generated, and speak stdin while it is written"
    add_option(group, "--stream", None, text)
    add_report(group)


def add_mark(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("marks", "See docs/responsible-use.md.")
    text = f"how the speech is marked as AI-generated: {CHOICES}; default: $VIVACE_MARK or metadata"
    add_option(group, "--mark", "MARK", text)
    text = "PEM file with the certificate for c2pa, then its chain; default: $VIVACE_C2PA_CERT"
    add_option(group, "--c2pa-cert", "FILE", text)
    text = "PEM file with the private key of the certificate; default: $VIVACE_C2PA_KEY"
    add_option(group, "--c2pa-key", "FILE", text)
    text = "timestamp authority for c2pa; default: $VIVACE_C2PA_TIMESTAMP_URL or no timestamp"
    add_option(group, "--c2pa-timestamp-url", "URL", text)


def add_report(group: argparse._ActionsContainer) -> None:
    add_option(group, "--json", None, "print the result as JSON")
    add_option(group, "-q --quiet", None, "print only warnings and errors")
