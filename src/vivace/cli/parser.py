"""The argument parser: the speaking commands, their options and the functions that run them.

A command names its work as `module:function` in this package. The module is imported, and the
options of the command are added, only when the command is used.
"""

from __future__ import annotations

import argparse

from vivace._version import __version__
from vivace.cli import machine_commands, options
from vivace.cli.command import (
    Commands,
    Parser,
    above_zero,
    add_command,
    add_numbers,
    add_option,
)
from vivace.cli.finetune_options import add_finetune
from vivace.errors import install_command

RECORDING = "1 to 30 s of speech of one person"
EXAMPLES = """\
examples:
  vivace "Hello."                        play the text, or write speech.wav
  vivace "Hello." -o hello.mp3           write a file
  some-llm | vivace - --stream --play    speak a text while it is written
  vivace clone --ref-audio me.wav "Hello."           speak with the voice of a recording
  vivace design "a warm old man" "Hello."            speak with a voice you describe

Without --model and VIVACE_MODEL, the embedded voice is used. If it cannot clone or design voices,
the error names a model for --model. `vivace TEXT` accepts all options of `vivace say`.
`vivace COMMAND --help` lists the options of a command.
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
    for name, summary, usage, add_options in (
        ("say", "speak a text: play it or write a file", "TEXT", _add_say),
        ("clone", "speak with the voice of a recording", "--ref-audio FILE [TEXT]", _add_clone),
        ("design", "speak with a voice you describe", "DESCRIPTION TEXT", _add_design),
    ):
        work = f"say:{name}"
        add_command(commands, name, summary, f"{usage} [OPTIONS]", work, add_options)
    _add_voice(commands)
    _add_speakers(commands)
    summary = "speak line by line with one loaded model"
    add_command(commands, "repl", summary, "[OPTIONS]", add_options=_add_repl)
    summary = "make an audiobook from text, markdown, HTML or EPUB"
    add_command(commands, "read", summary, "BOOK [OPTIONS]", add_options=_add_read)
    machine_commands.add_serve(commands)
    machine_commands.add_wyoming(commands)
    machine_commands.add_bench(commands)
    machine_commands.add_plan(commands)
    add_finetune(commands)
    machine_commands.add_models(commands)
    machine_commands.add_download(commands)
    machine_commands.add_quantize(commands)
    machine_commands.add_export(commands)
    machine_commands.add_verify(commands)
    machine_commands.add_detect(commands)
    machine_commands.add_doctor(commands)
    return parser, list(commands.choices)


def _add_text(parser: Parser) -> None:
    text = "text to speak; - or no TEXT reads stdin"
    parser.add_argument("text", metavar="TEXT", nargs="?", help=text)


def _add_speaking(parser: Parser) -> None:
    options.add_output(parser)
    _add_speech(parser)


def _add_speech(parser: Parser) -> None:
    options.add_speech(parser)
    options.add_mark(parser)
    options.add_model(parser, has_adapter=True)
    options.add_machine(parser)


def _add_say(say: Parser) -> None:
    _add_text(say)
    text = "speak every line of FILE to its own file in the folder of -o; - is stdin"
    add_option(say, "--batch", "FILE", text)
    text = "transcribe the speech (English) and report the word error rate; needs the extra quality"
    add_option(say, "--verify", None, text)
    options.add_dialogue(say)
    options.add_voice_option(say)
    _add_speaking(say)


def _add_clone(clone: Parser) -> None:
    _add_text(clone)
    group = clone.add_argument_group(
        "voice", "With the words of the recording, the voice is more similar."
    )
    add_option(group, "--ref-audio", "FILE", RECORDING, required=True)
    options.add_transcript(group)
    _add_save(group, "TEXT is then optional")
    _add_speaking(clone)


def _add_design(design: Parser) -> None:
    text = "description of the voice; omit it with --instruct"
    design.add_argument("description", metavar="DESCRIPTION", nargs="?", help=text)
    _add_text(design)
    group = design.add_argument_group("voice")
    _add_save(group, "needs --base-model")
    add_option(group, "--base-model", "NAME|FOLDER", "Base model that clones the voice for --save")
    _add_speaking(design)


def _add_save(group: argparse._ActionsContainer, note: str) -> None:
    text = f"save the voice in the library, or as FILE.safetensors; {note}"
    add_option(group, "--save", "NAME|FILE", text)
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
    add_option(add, "--language", "LANGUAGE", "language of the recording, stored as a note")
    options.add_enrolment(add)
    options.add_model(add)
    options.add_machine(add)
    listing = add_command(actions, "list", "list all saved voices", work="voice:list_voices")
    add_option(listing, "--json", None, "print the voices as JSON")
    for action, summary in (("show", "show one voice"), ("remove", "delete a voice")):
        one = add_command(actions, action, summary, work=f"voice:{action}_voice")
        one.add_argument("name", metavar="NAME", help="name of the voice")


def _add_speakers(commands: Commands) -> None:
    summary = "list the preset voices and languages of a model"
    speakers = add_command(commands, "speakers", summary, work="voice:list_speakers")
    add_option(speakers, "--json", None, "print the result as JSON")
    options.add_model(speakers, has_adapter=True)


def _add_repl(repl: Parser) -> None:
    repl.description = (
        "Speak every line of stdin. Lines are played, or written to speech.wav, speech-2.wav and "
        "so on. Ctrl-C stops the current line. `exit` or the end of stdin ends the command."
    )
    options.add_voice_option(repl)
    group = repl.add_argument_group("output")
    add_option(group, "-o --output", "FILE", "write FILE, FILE-2 and so on instead of playing")
    add_option(group, "--format", "FORMAT", f"format of the files: {options.FORMAT_NAMES}")
    add_option(group, "--play", None, "play the speech, also with -o")
    options.add_report(group)
    _add_speech(repl)


def _add_read(read: Parser) -> None:
    read.description = (
        "Make an audiobook with chapters from a .txt, .md, .html or .epub file. The whole book is "
        "checked before the first word is spoken. Finished segments are kept beside the output: "
        "after an interruption, the same command continues. EPUB and HTML need "
        f"{install_command('books')}; .m4b needs {install_command('av')}."
    )
    read.add_argument("book", metavar="BOOK", help="a .txt, .md, .html or .epub file")
    add_option(read, "--list", None, "list the chapters and exit")
    options.add_voice_option(read)
    group = read.add_argument_group("output")
    folder = "a folder or a pattern such as 'book/{n:02} {title}.mp3' gets one file per chapter"
    text = f"a file such as book.m4b; {folder}; default: BOOK.m4b"
    add_option(group, "-o --output", "FILE|FOLDER", text)
    add_option(group, "--format", "FORMAT", "format of the files in a folder; default: mp3")
    add_option(group, "--force", None, "overwrite existing files")
    text = "cover, a JPEG or PNG file; default: the cover of the EPUB"
    add_option(group, "--cover", "IMAGE", text)
    text = "title; default: the title in the book, or its file name"
    add_option(group, "--title", "TITLE", text)
    add_option(group, "--author", "AUTHOR", "author; default: the author in the book")
    add_numbers(group, ("--loudness", float, "LUFS", -18.0, "loudness, -40 to -5"))
    text = "bits per second of m4b, mp3, opus and aac; default: 64,000 for m4b"
    add_option(group, "--bit-rate", "N", text, above_zero(int))
    add_option(group, "--keep-parts", None, "keep the finished segments at the end")
    options.add_report(group)
    options.add_speech(read, leave_out={"chunk_frames"}, on_unsupported="error")
    read.set_defaults(chunk_frames=None)
    options.add_mark(read)
    options.add_model(read, has_adapter=True)
    options.add_machine(read)
