"""The argument parser: the commands that speak, their options and the functions that run them.

A command names its work as `module:function` in this package, imported only when it runs.
"""

from __future__ import annotations

import argparse

from vivace._version import __version__
from vivace.cli import machine_commands, options
from vivace.cli.command import Commands, Parser, above_zero, add_command

HOW_TO_SPEAK = "how to speak, or the voice described to a VoiceDesign model"
EXAMPLES = """\
examples:
  vivace "Hello."                        play it, or write speech.wav
  vivace "Hello." -o hello.mp3           write a file
  some-llm | vivace - --stream --play    speak a text while it is written
  vivace clone --model Qwen/Qwen3-TTS-12Hz-0.6B-Base --ref-audio me.wav "Hello."
  vivace design --model Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign "a warm old man" "Hello."

Without --model or VIVACE_MODEL, the voice inside the package speaks. The options of `say`
work without it too; `vivace COMMAND --help` lists them.
"""


def build_parser() -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser, and the names of its commands."""
    parser = Parser(
        prog="vivace",
        usage="vivace TEXT [OPTIONS]\n       vivace COMMAND ...",
        description="Qwen3-TTS, sooner and faster: text in, natural speech out.",
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
        "text", metavar="TEXT", nargs="?", help="what to say; - or nothing reads a piped stdin"
    )


def _add_speaking(parser: argparse.ArgumentParser, *, instruct: str = HOW_TO_SPEAK) -> None:
    options.add_speech(parser, instruct=instruct)
    options.add_output(parser)
    options.add_model(parser)
    options.add_machine(parser)
    options.add_sampling(parser)


def _add_say(commands: Commands) -> None:
    say = add_command(commands, "say", "speak a text: play it, or write it", "TEXT [OPTIONS]")
    _add_text(say)
    say.add_argument(
        "--batch",
        metavar="FILE",
        help="every line of FILE, or of - as stdin, to a file in -o FOLDER",
    )
    say.add_argument(
        "--verify",
        action="store_true",
        help="transcribe English speech and report its word error rate; needs vivace[quality]",
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
    _add_text(clone)
    group = clone.add_argument_group("voice", "Without its words, the voice is a vector alone.")
    group.add_argument(
        "--ref-audio", required=True, metavar="FILE", help="1 to 30 s of one person's speech"
    )
    options.add_transcript(group)
    _add_save(group, "then TEXT may be left out")
    _add_speaking(clone, instruct="how to speak")


def _add_design(commands: Commands) -> None:
    design = add_command(
        commands, "design", "speak with a voice you describe", "DESCRIPTION TEXT [OPTIONS]"
    )
    design.add_argument(
        "description", metavar="DESCRIPTION", nargs="?", help="of the voice, unless by --instruct"
    )
    _add_text(design)
    group = design.add_argument_group("voice")
    _add_save(group, "made of this speech by --base-model")
    group.add_argument("--base-model", metavar="MODEL", help="a Base model, to keep the voice with")
    _add_speaking(design, instruct="the description as an option")


def _add_save(group: argparse._ActionsContainer, note: str) -> None:
    group.add_argument(
        "--save",
        metavar="NAME|FILE",
        help=f"keep the voice by a name, or as FILE.safetensors; {note}",
    )
    options.add_enrolment(group)


def _add_voice(commands: Commands) -> None:
    voice = add_command(commands, "voice", "keep voices by name, to speak with later")
    actions = voice.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    add = add_command(
        actions,
        "add",
        "clone a recording and keep its voice",
        "NAME RECORDING [OPTIONS]",
        "voice:add_voice",
    )
    add.add_argument("name", metavar="NAME", help="of a-z 0-9 _ . -")
    add.add_argument("recording", metavar="RECORDING", help="1 to 30 s of one person's speech")
    options.add_transcript(add)
    add.add_argument("--language", help="the recording's, as a note")
    options.add_enrolment(add)
    options.add_model(add)
    options.add_machine(add)
    listing = add_command(actions, "list", "show all voices", work="voice:list_voices")
    listing.add_argument("--json", action="store_true", help="for programs")
    for action, summary in (("show", "show all of one voice"), ("remove", "forget a voice")):
        one = add_command(actions, action, summary, work=f"voice:{action}_voice")
        one.add_argument("name", metavar="NAME")


def _add_speakers(commands: Commands) -> None:
    speakers = add_command(
        commands, "speakers", "list a model's voices and languages", work="speakers:list_speakers"
    )
    speakers.add_argument("--json", action="store_true", help="for programs")
    options.add_model(speakers)


def _add_repl(commands: Commands) -> None:
    repl = add_command(commands, "repl", "speak line after line with one loaded model", "[OPTIONS]")
    repl.description = (
        "Speak every line of stdin as it comes. `exit` or the end of stdin ends it; Ctrl-C stops "
        "the line that is being spoken. It plays, or writes speech.wav, speech-2.wav and so on."
    )
    options.add_voice_option(repl)
    options.add_speech(repl, instruct=HOW_TO_SPEAK)
    group = repl.add_argument_group("output")
    group.add_argument("-o", "--output", metavar="FILE", help="write FILE, FILE-2 and so on")
    group.add_argument("--format", help="of the files: wav, pcm, flac, mp3, ogg, opus or aac")
    group.add_argument("--play", action="store_true", help="play, beside -o too")
    options.add_chunks(group)
    options.add_report(group)
    options.add_model(repl)
    options.add_machine(repl)
    options.add_sampling(repl)


def _add_read(commands: Commands) -> None:
    read = add_command(
        commands, "read", "make an audiobook of a text, markdown, HTML or EPUB", "BOOK [OPTIONS]"
    )
    read.description = (
        "Read a .txt, .md, .html or .epub file to an audiobook with chapters. The whole book is "
        "checked before anything is spoken. Finished parts are kept beside the output until the "
        "end: after an interruption, the same command continues. EPUB and HTML need "
        "pip install 'vivace[books]'."
    )
    read.add_argument("book", metavar="BOOK", help="a .txt, .md, .html or .epub file")
    read.add_argument("--list", action="store_true", help="show the chapters and make nothing")
    options.add_voice_option(read)
    options.add_speech(read, instruct=HOW_TO_SPEAK)
    read.set_defaults(on_unsupported="error")  # a book is checked before it is read
    group = read.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE|FOLDER",
        help="book.m4b; a FOLDER, or 'book/{n:02} {title}.mp3', has a file for each chapter",
    )
    group.add_argument("--format", help="of a folder's files; default: mp3")
    group.add_argument("--force", action="store_true", help="overwrite files")
    group.add_argument("--cover", metavar="IMAGE", help="a JPEG or PNG; default: the EPUB's own")
    group.add_argument("--title", help="default: the book's own, or the name of its file")
    group.add_argument("--author", help="default: the book's own")
    group.add_argument("--loudness", type=float, default=-18.0, metavar="LUFS", help="default: -18")
    group.add_argument("--bit-rate", type=above_zero(int), metavar="N", help="bits a second")
    group.add_argument("--keep-parts", action="store_true", help="keep the pieces at the end")
    options.add_report(group)
    read.set_defaults(chunk_frames=None)
    options.add_model(read)
    options.add_machine(read)
    options.add_sampling(read)
