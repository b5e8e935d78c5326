"""The commands `serve`, `wyoming`, `bench`, `plan` and `doctor`, with their options."""

from __future__ import annotations

from vivace.cli import options, server_options
from vivace.cli.command import Commands, above_zero, add_command, add_numbers, all_above_zero


def add_serve(commands: Commands) -> None:
    serve = add_command(
        commands,
        "serve",
        "run an OpenAI-compatible HTTP server with a web page",
        "[--model NAME] [OPTIONS]",
    )
    serve.description = (
        "Serve models over HTTP and WebSockets, with a web page at /. Flags override VIVACE_* "
        "variables (VIVACE_PORT and so on), which override the TOML file of --config. "
        "Needs pip install 'vivace[server]'."
    )
    server_options.add_models(serve)
    server_options.add_server(serve)


def add_wyoming(commands: Commands) -> None:
    wyoming = add_command(
        commands,
        "wyoming",
        "run a Wyoming server for Home Assistant",
        "[--model NAME] [OPTIONS]",
        "serve:serve_wyoming",
    )
    wyoming.description = (
        "Serve models over Wyoming, the protocol of Home Assistant, without HTTP. For both "
        "protocols, use `vivace serve --wyoming-port`. Flags override VIVACE_* variables, which "
        "override the TOML file of --config. Needs pip install 'vivace[wyoming]'."
    )
    wyoming.add_argument(
        "--port",
        "--wyoming-port",
        dest="wyoming_port",
        type=int,
        metavar="N",
        help="default: 10200; 0: any free port",
    )
    server_options.add_models(wyoming)
    server_options.add_server(wyoming, server_options.WYOMING_FLAGS)


def add_bench(commands: Commands) -> None:
    bench = add_command(
        commands,
        "bench",
        "measure latency and throughput of a model on this machine",
        "[OPTIONS]",
        "bench.bench:bench",
    )
    group = bench.add_argument_group("measurements")
    group.add_argument(
        "--streams",
        type=all_above_zero(int),
        default=[1, 4],
        metavar="N,N",
        help="numbers of concurrent streams; default: 1,4",
    )
    group.add_argument(
        "--batches",
        type=all_above_zero(int),
        metavar="N,N",
        help="numbers of concurrent streams for each backend; default: 1,8,64,256 on a GPU",
    )
    group.add_argument(
        "--rates",
        type=all_above_zero(float),
        default=[],
        metavar="X,X",
        help="requests per second with random arrivals; default: none",
    )
    count, number = above_zero(int), above_zero(float)
    add_numbers(
        group,
        ("--seconds", number, "S", 20.0, "duration of each rate"),
        ("--frames", count, "N", 64, "frames of 80 ms per request"),
        ("--repeats", count, "N", 5, "repetitions with one stream"),
        ("--rounds", count, "N", 2, "requests per stream"),
    )
    group.add_argument(
        "--voice", metavar="NAME|FILE", help="as for `say`; required for a Base model"
    )
    group.add_argument("--language", default="auto", help="language of the text; default: auto")
    group.add_argument(
        "--instruct", metavar="TEXT", help="description of the voice for a VoiceDesign model"
    )
    group.add_argument(
        "--compare",
        action="store_true",
        help="also measure qwen-tts and faster-qwen3-tts, if installed",
    )
    group = bench.add_argument_group("output")
    group.add_argument("--json", metavar="FILE", help="write all results and the machine as JSON")
    group.add_argument(
        "--plot", metavar="FILE.png", help="plot first audio against the rates of --rates"
    )
    options.add_model(bench)
    options.add_machine(bench)


def add_plan(commands: Commands) -> None:
    plan = add_command(
        commands,
        "plan",
        "compute how many GPUs a number of calls needs, and the cost",
        "--calls N [OPTIONS]",
    )
    plan.description = (
        "Simulate concurrent calls on a measured GPU. Prints the number of GPUs, the load and "
        "first audio of each, also after the loss of a GPU, and the cost of an hour of audio."
    )
    count, number = above_zero(int), above_zero(float)
    plan.add_argument(
        "--calls", type=count, required=True, metavar="N", help="number of concurrent calls"
    )
    plan.add_argument("--gpu", default="h200", help="a measured GPU: h200 (default)")
    plan.add_argument("--model", default="1.7B", help="0.6B or 1.7B; default: 1.7B")
    plan.add_argument(
        "--bench", metavar="FILE", help="use the report of `vivace bench --json FILE` as the GPU"
    )
    plan.add_argument(
        "--price", type=number, metavar="X", help="price per GPU and hour, in any currency"
    )
    add_numbers(
        plan,
        ("--first-audio", number, "MS", 200.0, "highest p95 of first audio"),
        ("--utterance", number, "S", 5.0, "mean length of an utterance in seconds"),
        ("--pause", number, "S", 7.0, "mean pause between utterances in seconds"),
        ("--losses", int, "N", 1, "GPUs that may fail at the same time"),
    )
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")


def add_doctor(commands: Commands) -> None:
    doctor = add_command(
        commands,
        "doctor",
        "show packages, devices and backends; or check a server",
        "[--url URL] [OPTIONS]",
        "server_check:doctor",
    )
    doctor.description = (
        "Show installed packages, devices and available backends. With --model, also load the "
        "model and warm up its backend. With --url, check a running server with typical requests; "
        "the exit code is 1 if a check fails."
    )
    doctor.add_argument("--json", action="store_true", help="print the result as JSON")
    group = doctor.add_argument_group("server check")
    group.add_argument("--url", metavar="URL", help="server address, such as http://127.0.0.1:8000")
    group.add_argument("--voice", metavar="NAME", help="voice to check; default: the server's")
    group.add_argument(
        "--api-key-env",
        default="VIVACE_API_KEY",
        metavar="NAME",
        help="environment variable with the API key; default: VIVACE_API_KEY",
    )
    add_numbers(group, ("--timeout", above_zero(float), "S", 30.0, "seconds per check"))
    options.add_model(doctor)
    options.add_machine(doctor)
