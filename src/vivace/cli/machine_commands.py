"""The commands that serve, measure, plan and check, with their options."""

from __future__ import annotations

from vivace.cli import options, server_options
from vivace.cli.command import Commands, above_zero, add_command, all_above_zero


def add_serve(commands: Commands) -> None:
    serve = add_command(
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
    server_options.add_models(serve)
    server_options.add_server(serve)


def add_wyoming(commands: Commands) -> None:
    wyoming = add_command(
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
    server_options.add_models(wyoming)
    server_options.add_server(wyoming, server_options.WYOMING_FLAGS)


def add_bench(commands: Commands) -> None:
    bench = add_command(
        commands,
        "bench",
        "measure how soon and how fast a model speaks here",
        "[OPTIONS]",
        "bench.bench:bench",
    )
    group = bench.add_argument_group("what to measure")
    group.add_argument(
        "--streams",
        type=all_above_zero(int),
        default=[1, 4],
        metavar="N,N",
        help="numbers of streams at once; default: 1,4",
    )
    group.add_argument(
        "--batches",
        type=all_above_zero(int),
        metavar="N,N",
        help="streams at once with every backend that runs here; default: 1,8,64,256 on a GPU",
    )
    group.add_argument(
        "--rates",
        type=all_above_zero(float),
        default=[],
        metavar="X,X",
        help="requests a second that come at random; default: none",
    )
    group.add_argument(
        "--seconds", type=above_zero(float), default=20.0, metavar="X", help="of each rate"
    )
    count = above_zero(int)
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


def add_plan(commands: Commands) -> None:
    plan = add_command(
        commands,
        "plan",
        "how many GPUs a number of calls needs, and what it costs",
        "--calls N [OPTIONS]",
    )
    plan.description = (
        "Simulate calls on measured GPUs, turn by turn: how many are needed, with which "
        "concurrency and first audio, also after the loss of one, and what an hour of audio costs."
    )
    count, number = above_zero(int), above_zero(float)
    plan.add_argument("--calls", type=count, required=True, metavar="N", help="at once")
    plan.add_argument("--gpu", default="h200", help="default: h200, the one that was measured")
    plan.add_argument("--model", default="1.7B", help="0.6B or 1.7B; default: 1.7B")
    plan.add_argument(
        "--bench", metavar="FILE", help="figures of `vivace bench --json FILE`, instead of --gpu"
    )
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


def add_doctor(commands: Commands) -> None:
    doctor = add_command(
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
        "--timeout", type=above_zero(float), default=30.0, metavar="X", help="seconds of one check"
    )
    options.add_model(doctor)
    options.add_machine(doctor)
