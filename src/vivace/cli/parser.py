"""The argument parser: the speaking commands, their options and the functions that run them.

A command names its work as `module:function` in this package. The module is imported, and the
options of the command are added, only when the command is used.
"""

from __future__ import annotations

import argparse
from functools import partial

from vivace._version import __version__
from vivace.cli import machine_commands, options
from vivace.cli.command import Commands, Parser, above_zero, add_command

RECORDING = "1 to 30 s of speech of one person"
EXAMPLES = """\
examples:
  vivace "Hello."                        play the text, or write speech.wav
  vivace "Hello." -o hello.mp3           write a file
  some-llm | vivace - --stream --play    speak a text while it is written
  vivace clone --model Qwen/Qwen3-TTS-12Hz-0.6B-Base --ref-audio me.wav "Hello."
  vivace design --model Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign "a warm old man" "Hello."

Without --model and VIVACE_MODEL, the embedded voice is used. `vivace TEXT` accepts all options of
`vivace say`. `vivace COMMAND --help` lists the options of a command.
"""


def build_parser() -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser and the names of its commands."""
    parser = Parser(
        prog="vivace",
        usage="vivace TEXT [OPTIONS]\n       vivace COMMAND ...",
        description="Text to speech with Qwen3-TTS, in real time.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"vivace {__version__}")
    commands = parser.add_subparsers(
        title="commands", prog="vivace", dest="command", metavar="COMMAND", required=True
    )
    _add_say(commands)
    _add_clone(commands)
    _add_design(commands)
    _add_voice(commands)
    _add_speakers(commands)
    _add_repl(commands)
    _add_read(commands)
    machine_commands.add_serve(commands)
    machine_commands.add_wyoming(commands)
    machine_commands.add_bench(commands)
    machine_commands.add_plan(commands)
    machine_commands.add_doctor(commands)
    return parser, list(commands.choices)


def _add_text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text", metavar="TEXT", nargs="?", help="text to speak; - or no TEXT reads stdin"
    )


def _add_speaking(parser: argparse.ArgumentParser) -> None:
    options.add_output(parser)
    options.add_speech(parser)
    options.add_model(parser)
    options.add_machine(parser)


def _add_say(commands: Commands) -> None:
    say = add_command(commands, "say", "speak a text: play it or write a file", "TEXT [OPTIONS]")
    say.add_late = partial(_add_say_options, say)


def _add_say_options(say: Parser) -> None:
    _add_text(say)
    say.add_argument(
        "--batch",
        metavar="FILE",
        help="speak every line of FILE to its own file in the folder of -o; - is stdin",
    )
    say.add_argument(
        "--verify",
        action="store_true",
        help="transcribe the speech (English) and report the word error rate; "
        "needs vivace[quality]",
    )
    options.add_dialogue(say)
    options.add_voice_option(say)
    _add_speaking(say)


def _add_clone(commands: Commands) -> None:
    clone = add_command(
        commands,
        "clone",
        "speak with the voice of a recording",
        "--ref-audio FILE [TEXT] [OPTIONS]",
    )
    clone.add_late = partial(_add_clone_options, clone)


def _add_clone_options(clone: Parser) -> None:
    _add_text(clone)
    group = clone.add_argument_group(
        "voice", "With the words of the recording, the voice is more similar."
    )
    group.add_argument("--ref-audio", required=True, metavar="FILE", help=RECORDING)
    options.add_transcript(group)
    _add_save(group, "TEXT is then optional")
    _add_speaking(clone)


def _add_design(commands: Commands) -> None:
    design = add_command(
        commands, "design", "speak with a voice you describe", "DESCRIPTION TEXT [OPTIONS]"
    )
    design.add_late = partial(_add_design_options, design)


def _add_design_options(design: Parser) -> None:
    design.add_argument(
        "description",
        metavar="DESCRIPTION",
        nargs="?",
        help="description of the voice; omit it with --instruct",
    )
    _add_text(design)
    group = design.add_argument_group("voice")
    _add_save(group, "needs --base-model")
    group.add_argument(
        "--base-model", metavar="NAME|FOLDER", help="Base model that clones the voice for --save"
    )
    _add_speaking(design)


def _add_save(group: argparse._ActionsContainer, note: str) -> None:
    group.add_argument(
        "--save",
        metavar="NAME|FILE",
        help=f"save the voice in the library, or as FILE.safetensors; {note}",
    )
    options.add_enrolment(group)


def _add_voice(commands: Commands) -> None:
    voice = add_command(commands, "voice", "manage saved voices")
    actions = voice.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    add = add_command(
        actions,
        "add",
        "clone a recording and save the voice",
        "NAME RECORDING [OPTIONS]",
        "voice:add_voice",
    )
    add.add_argument("name", metavar="NAME", help="name of the voice: a-z 0-9 _ . -")
    add.add_argument("recording", metavar="RECORDING", help=RECORDING)
    options.add_transcript(add)
    add.add_argument("--language", help="language of the recording, stored as a note")
    options.add_enrolment(add)
    options.add_model(add)
    options.add_machine(add)
    listing = add_command(actions, "list", "list all saved voices", work="voice:list_voices")
    listing.add_argument("--json", action="store_true", help="print the voices as JSON")
    for action, summary in (("show", "show one voice"), ("remove", "delete a voice")):
        one = add_command(actions, action, summary, work=f"voice:{action}_voice")
        one.add_argument("name", metavar="NAME", help="name of the voice")


def _add_speakers(commands: Commands) -> None:
    speakers = add_command(
        commands,
        "speakers",
        "list the preset voices and languages of a model",
        work="speakers:list_speakers",
    )
    speakers.add_argument("--json", action="store_true", help="print the result as JSON")
    options.add_model(speakers)


def _add_repl(commands: Commands) -> None:
    repl = add_command(commands, "repl", "speak line by line with one loaded model", "[OPTIONS]")
    repl.description = (
        "Speak every line of stdin. Lines are played, or written to speech.wav, speech-2.wav and "
        "so on. Ctrl-C stops the current line. `exit` or the end of stdin ends the command."
    )
    repl.add_late = partial(_add_repl_options, repl)


def _add_repl_options(repl: Parser) -> None:
    options.add_voice_option(repl)
    group = repl.add_argument_group("output")
    group.add_argument(
        "-o", "--output", metavar="FILE", help="write FILE, FILE-2 and so on instead of playing"
    )
    group.add_argument("--format", help=f"format of the files: {options.FORMAT_NAMES}")
    group.add_argument("--play", action="store_true", help="play the speech, also with -o")
    options.add_report(group)
    options.add_speech(repl)
    options.add_model(repl)
    options.add_machine(repl)


def _add_read(commands: Commands) -> None:
    read = add_command(
        commands, "read", "make an audiobook from text, markdown, HTML or EPUB", "BOOK [OPTIONS]"
    )
    read.description = (
        "Make an audiobook with chapters from a .txt, .md, .html or .epub file. The whole book is "
        "checked before the first word is spoken. Finished segments are kept beside the output: "
        "after an interruption, the same command continues. EPUB and HTML need "
        "pip install 'vivace[books]'; .m4b needs pip install 'vivace[av]'."
    )
    read.add_late = partial(_add_read_options, read)


def _add_read_options(read: Parser) -> None:
    read.add_argument("book", metavar="BOOK", help="a .txt, .md, .html or .epub file")
    read.add_argument("--list", action="store_true", help="list the chapters and exit")
    options.add_voice_option(read)
    group = read.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE|FOLDER",
        help="a file such as book.m4b; a folder or a pattern such as 'book/{n:02} {title}.mp3' "
        "gets one file per chapter; default: BOOK.m4b",
    )
    group.add_argument("--format", help="format of the files in a folder; default: mp3")
    group.add_argument("--force", action="store_true", help="overwrite existing files")
    group.add_argument(
        "--cover", metavar="IMAGE", help="cover, a JPEG or PNG file; default: the cover of the EPUB"
    )
    group.add_argument("--title", help="title; default: the title in the book, or its file name")
    group.add_argument("--author", help="author; default: the author in the book")
    group.add_argument(
        "--loudness",
        type=float,
        default=-18.0,
        metavar="LUFS",
        help="loudness, -40 to -5; default: -18",
    )
    group.add_argument(
        "--bit-rate",
        type=above_zero(int),
        metavar="N",
        help="bits per second of m4b, mp3, opus and aac; default: 64,000 for m4b",
    )
    group.add_argument(
        "--keep-parts", action="store_true", help="keep the finished segments at the end"
    )
    options.add_report(group)
    options.add_speech(read, leave_out={"chunk_frames"}, on_unsupported="error")
    read.set_defaults(chunk_frames=None)
    options.add_model(read)
    options.add_machine(read)
