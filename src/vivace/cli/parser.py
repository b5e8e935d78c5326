"""The argument parser: every command, its options and the function that runs it.

A command names its work as `module:function` in this package, imported only when it runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from vivace._version import __version__
from vivace.cli import options
from vivace.cli.streams import put

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]

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


class UsageError(Exception):
    """The command line is invalid."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class Parser(argparse.ArgumentParser):
    """Argparse that writes through our streams and leaves errors to `main`."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, self.format_usage())

    def _print_message(self, message: str, file: object = None) -> None:
        put(message.rstrip("\n"))


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
    _add_serve(commands)
    _add_wyoming(commands)
    _add_bench(commands)
    _add_plan(commands)
    _add_doctor(commands)
    return parser, list(commands.choices)


def _add(
    commands: Commands, name: str, summary: str, usage: str = "", work: str | None = None
) -> argparse.ArgumentParser:
    """A command whose description is its summary; by default `name:name` runs it."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    if usage:
        parser.usage = f"{parser.prog} {usage}"
    parser.set_defaults(work=work or f"{name}:{name}", fail=parser.error)
    return parser


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
    say = _add(commands, "say", "speak a text: play it, or write it", "TEXT [OPTIONS]")
    _add_text(say)
    say.add_argument(
        "--batch",
        metavar="FILE",
        help="every line of FILE, or of - as stdin, to a file in -o FOLDER",
    )
    options.add_dialogue(say)
    options.add_voice_option(say)
    _add_speaking(say)


def _add_clone(commands: Commands) -> None:
    clone = _add(
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
    design = _add(
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
    voice = _add(commands, "voice", "keep voices by name, to speak with later")
    actions = voice.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    add = _add(
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
    listing = _add(actions, "list", "show all voices", work="voice:list_voices")
    listing.add_argument("--json", action="store_true", help="for programs")
    for action, summary in (("show", "show all of one voice"), ("remove", "forget a voice")):
        one = _add(actions, action, summary, work=f"voice:{action}_voice")
        one.add_argument("name", metavar="NAME")


def _add_speakers(commands: Commands) -> None:
    speakers = _add(
        commands, "speakers", "list a model's voices and languages", work="speakers:list_speakers"
    )
    speakers.add_argument("--json", action="store_true", help="for programs")
    options.add_model(speakers)


def _add_repl(commands: Commands) -> None:
    repl = _add(commands, "repl", "speak line after line with one loaded model", "[OPTIONS]")
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
    read = _add(commands, "read", "make an audiobook of a text, markdown or EPUB", "BOOK [OPTIONS]")
    read.description = (
        "Read a .txt, .md or .epub to an audiobook with chapters. What is made is kept beside the "
        "output until all is done: after a kill, the same command goes on where it stopped."
    )
    read.add_argument("book", metavar="BOOK", help="a .txt, .md or .epub file")
    read.add_argument("--list", action="store_true", help="show the chapters and make nothing")
    options.add_voice_option(read)
    options.add_speech(read, instruct=HOW_TO_SPEAK)
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
    group.add_argument("--bit-rate", type=_number(int), metavar="N", help="bits a second")
    group.add_argument("--keep-parts", action="store_true", help="keep the pieces at the end")
    options.add_report(group)
    read.set_defaults(chunk_frames=None)
    options.add_model(read)
    options.add_machine(read)
    options.add_sampling(read)


def _add_serve(commands: Commands) -> None:
    serve = _add(
        commands,
        "serve",
        "answer OpenAI's clients over HTTP, and show a page",
        "[--model NAME] [OPTIONS]",
    )
    serve.description = (
        "Serve models over HTTP and WebSockets, with a page at /. Flags come before VIVACE_* "
        "variables (VIVACE_PORT and so on), and those before the TOML file of --config. "
        "It needs pip install 'vivace[server]'."
    )
    _add_served(serve)
    options.add_server(serve)


def _add_wyoming(commands: Commands) -> None:
    wyoming = _add(
        commands,
        "wyoming",
        "answer Home Assistant, over Wyoming alone",
        "[--model NAME] [OPTIONS]",
        "serve:serve_wyoming",
    )
    wyoming.description = (
        "Serve models over Wyoming, Home Assistant's protocol, without HTTP. Settings also come "
        "from VIVACE_* variables and the file of --config, as `vivace serve` does, which speaks "
        "Wyoming beside HTTP with --wyoming-port. It needs pip install 'vivace[wyoming]'."
    )
    wyoming.add_argument(
        "--port",
        "--wyoming-port",
        dest="wyoming_port",
        type=int,
        metavar="N",
        help="default: 10200; 0 takes a free one",
    )
    _add_served(wyoming)
    options.add_server(wyoming, options.WYOMING_FLAGS)


def _add_served(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        action="append",
        metavar="[NAME=]SOURCE",
        help="a hub id or a checkpoint folder, by NAME; repeatable; default: the embedded voice",
    )
    parser.add_argument(
        "--voices", metavar="DIR", help="the voice library, or a store's URL; default: your own"
    )
    parser.add_argument(
        "--config", metavar="FILE", help="settings as TOML, named as here: port = 1"
    )


def _add_doctor(commands: Commands) -> None:
    doctor = _add(
        commands,
        "doctor",
        "show what this machine can run, and why; or check a server",
        "[--url URL] [OPTIONS]",
        "server_check:doctor",
    )
    doctor.description = (
        "Show what is installed, which devices there are and which backends can run. With --model, "
        "load it, make its backend ready and show how it runs. With --url, ask a running server "
        "what a client would ask; the exit code is 1 if a check fails."
    )
    doctor.add_argument("--json", action="store_true", help="for programs")
    group = doctor.add_argument_group("a running server")
    group.add_argument("--url", metavar="URL", help="such as http://127.0.0.1:8000")
    group.add_argument("--voice", metavar="NAME", help="to speak with; default: the server's own")
    group.add_argument(
        "--api-key-env",
        default="VIVACE_API_KEY",
        metavar="NAME",
        help="the variable that holds the key; default: VIVACE_API_KEY",
    )
    group.add_argument(
        "--timeout", type=_number(float), default=30.0, metavar="X", help="seconds of one check"
    )
    options.add_model(doctor)
    options.add_machine(doctor)


def _add_plan(commands: Commands) -> None:
    plan = _add(
        commands,
        "plan",
        "how many GPUs a number of calls needs, and what it costs",
        "--calls N [OPTIONS]",
    )
    plan.description = (
        "Simulate calls on measured GPUs, turn by turn: how many are needed, with which "
        "concurrency and first audio, also after the loss of one, and what an hour of audio costs."
    )
    count, number = _number(int), _number(float)
    plan.add_argument("--calls", type=count, required=True, metavar="N", help="at once")
    plan.add_argument("--gpu", default="h200", help="default: h200, the one that was measured")
    plan.add_argument("--model", default="1.7B", help="0.6B or 1.7B; default: 1.7B")
    plan.add_argument("--price", type=number, metavar="X", help="of a GPU, for an hour")
    plan.add_argument(
        "--first-audio", type=number, default=200.0, metavar="MS", help="p95; default: 200 ms"
    )
    plan.add_argument(
        "--utterance", type=number, default=5.0, metavar="S", help="mean length; default: 5 s"
    )
    plan.add_argument(
        "--pause", type=number, default=7.0, metavar="S", help="mean, between two; default: 7 s"
    )
    plan.add_argument(
        "--losses", type=int, default=1, metavar="N", help="GPUs that may be lost; default: 1"
    )
    plan.add_argument("--json", action="store_true", help="for programs")


def _add_bench(commands: Commands) -> None:
    bench = _add(
        commands,
        "bench",
        "measure how soon and how fast a model speaks here",
        "[OPTIONS]",
        "bench.bench:bench",
    )
    group = bench.add_argument_group("what to measure")
    group.add_argument(
        "--streams",
        type=_numbers(int),
        default=[1, 4],
        metavar="N,N",
        help="numbers of streams at once; default: 1,4",
    )
    group.add_argument(
        "--rates",
        type=_numbers(float),
        default=[],
        metavar="X,X",
        help="requests a second that come at random; default: none",
    )
    group.add_argument(
        "--seconds", type=_number(float), default=20.0, metavar="X", help="of each rate"
    )
    count = _number(int)
    group.add_argument("--frames", type=count, default=64, metavar="N", help="of 80 ms, a request")
    group.add_argument("--repeats", type=count, default=5, metavar="N", help="of what is timed")
    group.add_argument("--rounds", type=count, default=2, metavar="N", help="of every stream")
    group.add_argument("--voice", metavar="NAME|FILE", help="as for say; a Base model needs one")
    group.add_argument("--language", default="auto", help="of the text; default: auto")
    group.add_argument("--instruct", metavar="WORDS", help="the voice, of a VoiceDesign model")
    group.add_argument(
        "--compare", action="store_true", help="time qwen-tts and faster-qwen3-tts too, if there"
    )
    group = bench.add_argument_group("output")
    group.add_argument("--json", metavar="FILE", help="write all of it, with the machine")
    group.add_argument("--plot", metavar="FILE.png", help="first audio against --rates")
    options.add_model(bench)
    options.add_machine(bench)


def _number(kind: type[int] | type[float]) -> Callable[[str], int | float]:
    def read(text: str) -> int | float:
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"needs {what} above 0, not {text!r}")
        return number

    return read


def _numbers(kind: type[int] | type[float]) -> Callable[[str], list[int | float]]:
    """With commas between them."""
    read_one = _number(kind)
    return lambda text: [read_one(part) for part in text.split(",")]
