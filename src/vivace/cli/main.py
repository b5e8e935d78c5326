"""The `vivace` command: parse, then import what the command needs.

Words go to stderr, audio to a file; an error is one line and exit code 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from vivace._version import __version__
from vivace.errors import TTSError


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vivace", description="Qwen3-TTS, sooner and faster: text in, natural speech out."
    )
    parser.add_argument("--version", action="version", version=f"vivace {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_say(commands)
    _add_voice(commands)
    _add_speakers(commands)
    doctor = commands.add_parser("doctor", help="show what this machine can run, and why")
    doctor.set_defaults(run=_run_doctor)
    return parser


def _add_say(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    say = commands.add_parser(
        "say",
        help="speak a text into a file",
        description="Speak TEXT into a file; the file's extension picks the format.",
    )
    say.add_argument("text", metavar="TEXT", help="what to say; - reads it from stdin")
    say.add_argument("--model", required=True, help="a hub id or a checkpoint folder")
    say.add_argument(
        "-o", "--output", metavar="FILE", help="- is stdout; default: speech.wav or the next free"
    )
    say.add_argument("--force", action="store_true", help="overwrite the file")
    say.add_argument("--format", help="of stdout or the default file: wav, pcm, flac, mp3, opus …")
    say.add_argument("--clean", action="store_true", help="take out markdown, emoji and links")
    say.add_argument("--stream", action="store_true", help="write audio while it is made")
    say.add_argument("--speed", type=float, default=1.0, help="0.25 to 4; the pitch is kept")
    say.add_argument("--json", action="store_true", help="print what was made as JSON")
    say.add_argument("-q", "--quiet", action="store_true", help="print nothing")
    say.add_argument("--voice", help="a preset speaker, a reference recording or a voice file")
    say.add_argument("--transcript", help="the words of the reference recording")
    say.add_argument("--language", default="auto", help="default: %(default)s")
    say.add_argument("--instruct", help="how to speak, or the voice described")
    say.add_argument(
        "--text-layout", choices=("whole", "streamed"), help="default: the official one"
    )
    say.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:0, mps")
    say.add_argument("--dtype", default="auto", help="auto, bfloat16, float32")
    say.add_argument("--backend", default="auto", help="see vivace doctor; default: %(default)s")
    say.add_argument("--revision", help="of a hub id: a branch, tag or commit")
    say.add_argument("--offline", action="store_true", help="use the local cache only")
    _add_sampling(say.add_argument_group("sampling, the checkpoint's own unless given"))
    say.set_defaults(run=_run_say)


def _add_voice(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    voice = commands.add_parser(
        "voice", help="keep voices by name", description="Keep voices by name, to speak with later."
    )
    actions = voice.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="clone a recording and keep its voice")
    add.add_argument("name", metavar="NAME", help="of a-z 0-9 _ . -")
    add.add_argument("recording", metavar="RECORDING", help="1 to 30 s of speech")
    add.add_argument("--transcript", help="every word of it, for a closer voice")
    add.add_argument("--language", help="the recording's, as a note")
    add.add_argument("--licence", help="what the voice may be used for, as a note")
    add.add_argument(
        "--no-append-silence",
        dest="append_silence",
        action="store_false",
        help="encode the recording as it ends, as the official package does",
    )
    add.add_argument("--replace", action="store_true", help="a voice of the same name")
    add.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:0, mps")
    _add_model(add)
    add.set_defaults(run=_run_voice, work="add_voice")
    listing = actions.add_parser("list", help="show all voices")
    listing.add_argument("--json", action="store_true")
    listing.set_defaults(run=_run_voice, work="list_voices")
    for action, help_text in (("show", "show all of one voice"), ("remove", "forget a voice")):
        one = actions.add_parser(action, help=help_text)
        one.add_argument("name", metavar="NAME")
        one.set_defaults(run=_run_voice, work=f"{action}_voice")


def _add_speakers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    speakers = commands.add_parser("speakers", help="list a checkpoint's voices and languages")
    _add_model(speakers)
    speakers.add_argument("--json", action="store_true")
    speakers.set_defaults(run=_run_voice, work="list_speakers")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="a hub id or a checkpoint folder")
    parser.add_argument("--revision", help="of a hub id: a branch, tag or commit")
    parser.add_argument("--offline", action="store_true", help="use the local cache only")


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--seed", type=int, help="the same seed gives the same codes")
    group.add_argument("--temperature", type=float, help="0 is greedy")
    group.add_argument("--top-k", type=int, help="0 keeps every code")
    group.add_argument("--top-p", type=float)
    group.add_argument("--repetition-penalty", type=float)
    group.add_argument("--predictor-temperature", type=float)
    group.add_argument("--predictor-top-k", type=int)
    group.add_argument("--predictor-top-p", type=float)
    group.add_argument("--max-frames", type=int, help="of 80 ms each")


def _run_say(arguments: argparse.Namespace) -> None:
    from vivace.cli.say import say

    say(arguments)


def _run_voice(arguments: argparse.Namespace) -> None:
    from vivace.cli import voice

    getattr(voice, arguments.work)(arguments)


def _run_doctor(arguments: argparse.Namespace) -> None:
    from vivace.cli.doctor import doctor

    doctor()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except TTSError as error:
        print("vivace:", " ".join(str(error).split()), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("vivace: interrupted", file=sys.stderr)
        return 130
    return 0
