"""The options of `vivace finetune`, derived from the dataclasses of `vivace.finetune.options`."""

from __future__ import annotations

import argparse
from typing import Any, get_args, get_type_hints

from vivace.cli import options
from vivace.cli.command import Commands, Parser, add_command, add_numbers, add_option
from vivace.errors import install_command


def add_finetune(commands: Commands) -> None:
    summary = "train a checkpoint on recordings of a speaker"
    usage = "DATA --name NAME [-o FILE|FOLDER] [OPTIONS]"
    add_command(commands, "finetune", summary, usage, "finetune:finetune", _add_options)


def _add_options(parser: Parser) -> None:
    parser.description = (
        "Train an adapter, or all weights, on recordings with transcripts. DATA is a folder with "
        "metadata.csv (LJSpeech), a .jsonl file, or a folder of audio files, each with a .txt file "
        "beside it. Unusable recordings are listed and left out. After an interruption, the same "
        "command with --resume continues. Transcripts are checked if "
        f"{install_command('quality')} was run."
    )
    parser.add_argument("data", metavar="DATA", help="recordings and transcripts")
    text = "name of the speaker; without it, the data names its speakers"
    add_option(parser, "--name", "NAME", text)
    text = "adapter (.safetensors) or folder of a merged checkpoint; default: NAME.safetensors"
    add_option(parser, "-o --output", "FILE|FOLDER", text)
    add_option(parser, "--resume", None, "continue an interrupted run")
    add_option(parser, "--force", None, "overwrite an existing adapter")
    add_option(parser, "--licence", "TEXT", "licence of the recordings, stored with the adapter")
    text = "who agreed to the use of the voice, stored with the adapter"
    add_option(parser, "--consent", "TEXT", text)
    add_numbers(
        parser,
        ("--samples", int, "N", 4, "held-out sentences to speak after every epoch"),
        ("--save-every", float, "S", 300, "seconds between saved states"),
    )
    add_option(parser, "--json", None, "print the result as JSON")
    add_option(parser, "-q --quiet", None, "print only warnings and errors")
    from vivace.finetune.options import DataOptions, TrainOptions

    _add_fields(parser.add_argument_group("recordings"), DataOptions)
    _add_fields(parser.add_argument_group("training"), TrainOptions)
    options.add_model(parser)
    group = parser.add_argument_group("machine")
    add_option(
        group, "--device", "DEVICE", "auto, cpu, cuda or cuda:0; default: auto", default="auto"
    )
    text = "auto, bfloat16 or float32; default: auto"
    add_option(group, "--dtype", "DTYPE", text, default="auto")
    add_option(group, "--threads", "N", "CPU threads; default: all cores", int)


def _add_fields(group: argparse._ArgumentGroup, kind: Any) -> None:
    """Add a flag for every field of an options class."""
    hints = get_type_hints(kind, include_extras=True)
    for name, field in kind.__dataclass_fields__.items():
        annotation, documentation = get_args(hints[name])[:2]
        settings = options.flag(name, annotation)
        if annotation == tuple[str, ...]:
            settings = {"type": _read_names, "metavar": "NAME,NAME"}
        elif field.default is True:
            settings = {"action": argparse.BooleanOptionalAction}
        group.add_argument(
            f"--{name.replace('_', '-')}",
            default=None,
            help=options.help_text(documentation, _shown(field.default)),
            **settings,
        )


def _shown(default: object) -> object:
    if isinstance(default, tuple):
        return ",".join(default)
    return str(default) if type(default) is int else default


def _read_names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def given(arguments: argparse.Namespace, kind: Any) -> Any:
    """The options object of the flags that were given."""
    values = {name: getattr(arguments, name) for name in kind.__dataclass_fields__}
    return kind(**{name: value for name, value in values.items() if value is not None})
