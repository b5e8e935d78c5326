"""The commands for servers, models and machines, with their options."""

from __future__ import annotations

from functools import partial

from vivace.cli import options
from vivace.cli.command import (
    Commands,
    above_zero,
    add_command,
    add_numbers,
    add_option,
    all_above_zero,
)
from vivace.cli.server_options import add_settings
from vivace.errors import install_command

MAX_CLIENTS = 10_000  # of `vivace bench`: streams at once, or requests per second


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
        f"Needs {install_command('server')}."
    )
    serve.add_late = partial(add_settings, serve, has_http=True)


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
        f"override the TOML file of --config. Needs {install_command('wyoming')}."
    )
    wyoming.add_argument(
        "--port",
        "--wyoming-port",
        dest="wyoming_port",
        type=int,
        metavar="N",
        help="default: 10200; 0: any free port",
    )
    wyoming.add_late = partial(add_settings, wyoming, has_http=False)


def add_bench(commands: Commands) -> None:
    summary = "measure latency and throughput of a model on this machine"
    bench = add_command(commands, "bench", summary, "[OPTIONS]", "bench.bench:bench")
    count, number = above_zero(int), above_zero(float)
    counts, numbers = all_above_zero(int, MAX_CLIENTS), all_above_zero(float, MAX_CLIENTS)
    group = bench.add_argument_group("measurements")
    text = "numbers of concurrent streams; default: 1,4"
    add_option(group, "--streams", "N,N", text, counts, default=[1, 4])
    text = "numbers of concurrent streams for each backend; default: 1,8,64,256 on a GPU"
    add_option(group, "--batches", "N,N", text, counts)
    text = "requests per second with random arrivals; default: none"
    add_option(group, "--rates", "X,X", text, numbers, default=[])
    text = "numbers of streams that are played in real time, to count underruns; default: none"
    add_option(group, "--live", "N,N", text, counts, default=[])
    add_numbers(
        group,
        ("--seconds", number, "S", 20.0, "duration of each rate and of live playback"),
        ("--frames", count, "N", 64, "frames of 80 ms per request"),
        ("--repeats", count, "N", 5, "repetitions with one stream"),
        ("--rounds", count, "N", 2, "requests per stream"),
    )
    add_option(group, "--voice", "NAME|FILE", "as for `say`; required for a Base model")
    text = "language of the text; default: auto"
    add_option(group, "--language", "LANGUAGE", text, default="auto")
    add_option(group, "--instruct", "TEXT", "description of the voice for a VoiceDesign model")
    add_option(group, "--compare", None, "also measure qwen-tts and faster-qwen3-tts, if installed")
    group = bench.add_argument_group("output")
    add_option(group, "--json", "FILE", "write all results and the machine as JSON; -: to stdout")
    add_option(group, "--plot", "FILE.png", "plot first audio against the rates of --rates")
    options.add_model(bench)
    options.add_machine(bench)


def add_plan(commands: Commands) -> None:
    summary = "compute how many GPUs a number of calls needs, and the cost"
    plan = add_command(commands, "plan", summary, "--calls N [OPTIONS]")
    plan.description = (
        "Simulate concurrent calls on a measured GPU. Prints the number of GPUs, the load and "
        "first audio of each, also after the loss of a GPU, and the cost of an hour of audio."
    )
    count, number = above_zero(int), above_zero(float)
    add_option(plan, "--calls", "N", "number of concurrent calls", count, required=True)
    add_option(plan, "--gpu", "GPU", "a measured GPU: h200 (default)", default="h200")
    add_option(plan, "--model", "MODEL", "0.6B or 1.7B; default: 1.7B", default="1.7B")
    add_option(plan, "--bench", "FILE", "use the report of `vivace bench --json FILE` as the GPU")
    add_option(plan, "--price", "X", "price per GPU and hour, in any currency", number)
    add_numbers(
        plan,
        ("--first-audio", number, "MS", 200.0, "highest p95 of first audio"),
        ("--utterance", number, "S", 5.0, "mean length of an utterance in seconds"),
        ("--pause", number, "S", 7.0, "mean pause between utterances in seconds"),
        ("--losses", int, "N", 1, "GPUs that may fail at the same time"),
    )
    add_option(plan, "--json", None, "print the plan as JSON")


def add_models(commands: Commands) -> None:
    summary = "list the models with size, licence and abilities"
    models = add_command(commands, "models", summary, "[--json]", "models:list_models")
    add_option(models, "--json", None, "print the models as JSON")


def add_download(commands: Commands) -> None:
    summary = "download a model before its first use"
    download = add_command(commands, "download", summary, "MODEL [OPTIONS]", "models:download")
    download.description = (
        "Download a model into the Hugging Face cache and print its folder. After an interruption, "
        "the same command continues. `vivace models` lists the models."
    )
    download.add_argument("name", metavar="MODEL", help="Hugging Face id of a model")
    add_option(download, "--revision", "REVISION", "branch, tag or commit")


def add_quantize(commands: Commands) -> None:
    summary = "write a copy of a model with int8 or int4 weights, for CPUs"
    quantize = add_command(commands, "quantize", summary, "MODEL -o FOLDER [OPTIONS]")
    quantize.description = (
        "Write a checkpoint whose matrices are int8 or int4 to a new folder, and print the folder. "
        "`--model FOLDER` uses it on a CPU, without quantizing again at every start."
    )
    text = "Hugging Face id or checkpoint folder; mini is the embedded voice"
    quantize.add_argument("name", metavar="MODEL", help=text)
    add_option(quantize, "-o --output", "FOLDER", "new folder of the checkpoint", required=True)
    text = "int8 (default), or int4: half the memory, slightly less exact"
    choices = ("int8", "int4")
    add_option(quantize, "--weights", "WEIGHTS", text, choices=choices, default="int8")
    options.add_hub(quantize)


def add_export(commands: Commands) -> None:
    summary = "write a small model as ONNX graphs, for browsers"
    export = add_command(commands, "export", summary, "[MODEL] -o FOLDER [OPTIONS]")
    export.description = (
        "Write the graphs of a model of at most 400 MB, its tokenizer and manifest.json to a new "
        "folder, and print the folder. Needs the extra onnx."
    )
    text = "Hugging Face id or checkpoint folder; default: mini, the embedded voice"
    export.add_argument("name", metavar="MODEL", nargs="?", default="mini", help=text)
    add_option(export, "-o --output", "FOLDER", "new folder of the graphs", required=True)
    text = "format of the graphs: onnx"
    add_option(export, "--format", "FORMAT", text, choices=("onnx",), default="onnx")
    text = "int8 (default), float16 or float32: the same codes as the package"
    choices = ("int8", "float16", "float32")
    add_option(export, "--weights", "WEIGHTS", text, choices=choices, default="int8")
    options.add_hub(export)


def add_verify(commands: Commands) -> None:
    summary = "compare a model with recorded golden values"
    verify = add_command(commands, "verify", summary, "[MODEL] [OPTIONS]")
    verify.description = (
        "Load a model and compare token ids, vectors, states, codes and samples with recorded "
        "values. Without --backend, --dtype and --weights, runs float32 with the backend eager, "
        "then the fastest backend. Exit code 0: all required rows are ok; 1: a row differs; 2: "
        "nothing is recorded for this model."
    )
    text = "Hugging Face id or checkpoint folder; default: $VIVACE_MODEL or the embedded voice"
    verify.add_argument("model", metavar="MODEL", nargs="?", help=text)
    files = verify.add_mutually_exclusive_group()
    add_option(files, "--golden", "FILE", "golden values; default: those in the package")
    text = "record golden values of MODEL (float32, eager) in a new FILE, and exit"
    add_option(files, "--record", "FILE", text)
    add_option(
        verify, "--json", "FILE", "write the report as JSON, without names and paths; -: to stdout"
    )
    add_option(verify, "-q --quiet", None, "show no progress")
    options.add_hub(verify)
    options.add_machine(verify)


def add_detect(commands: Commands) -> None:
    summary = "report whether audio files are marked as AI-generated"
    detect = add_command(commands, "detect", summary, "FILE [FILE ...] [--json]")
    detect.description = (
        "Look for metadata, a watermark and a signed manifest. Exit code 0: every file is marked "
        "as AI-generated; 1: a file has no mark; 2: a file cannot be read. The watermark and the "
        f"manifest need {install_command('mark')}."
    )
    detect.add_argument("files", metavar="FILE", nargs="+", help="audio file; - is stdin")
    add_option(detect, "--json", None, "print one JSON object for each file")


def add_doctor(commands: Commands) -> None:
    summary = "check this machine and propose fixes; or check a server"
    doctor = add_command(
        commands, "doctor", summary, "[--url URL] [OPTIONS]", "server_check:doctor"
    )
    doctor.description = (
        "Show installed packages, devices and available backends, and for each problem a command "
        "that fixes it. With --model, also load the model and warm up its backend. With --url, "
        "check a running server with typical requests; the exit code is 1 if a check fails."
    )
    add_option(doctor, "--json", None, "print the result as JSON")
    group = doctor.add_argument_group("server check")
    add_option(group, "--url", "URL", "server address, such as http://127.0.0.1:8000")
    add_option(group, "--voice", "NAME", "voice to check; default: the server's")
    text = "environment variable with the API key; default: VIVACE_API_KEY"
    add_option(group, "--api-key-env", "NAME", text, default="VIVACE_API_KEY")
    add_numbers(group, ("--timeout", above_zero(float), "S", 30.0, "seconds per check"))
    options.add_model(doctor)
    options.add_machine(doctor)
