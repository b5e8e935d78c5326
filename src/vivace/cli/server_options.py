"""The options of `vivace serve` and `vivace wyoming`. Argparse only, as the others."""

from __future__ import annotations

import argparse
from typing import Any

TEXT: dict[str, Any] = {"type": str}
NUMBER: dict[str, Any] = {"type": int, "metavar": "N"}
SECONDS: dict[str, Any] = {"type": float}
SWITCH: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
SEVERAL: dict[str, Any] = {"action": "append"}
FLAGS = (
    ("address", (
        ("host", TEXT, "address to listen on; default: 127.0.0.1, this machine alone"),
        ("port", NUMBER, "default: 8000; 0 takes a free one"),
        ("wyoming-port", NUMBER, "Home Assistant's protocol too; usually 10200"),
        ("zeroconf", SWITCH, "announce the Wyoming port on the network"),
        ("root-path", TEXT, "the sub-path of a proxy in front, such as /tts"),
        ("tls-cert", TEXT, "a certificate file, for https"),
        ("tls-key", TEXT, "its key file"),
    )),
    ("access", (
        ("api-key-env", TEXT, "the variable that holds the keys; default: VIVACE_API_KEY"),
        ("allow-anonymous", SWITCH, "on an address that others can reach"),
        ("public-lists", SWITCH, "models and voices without a key, for Open WebUI"),
        ("allowed-host", SEVERAL, "a name that the server is reached by; repeatable"),
        ("allowed-origin", SEVERAL, "a web page's origin that may ask (CORS); repeatable"),
    )),
    ("models", (
        ("max-streams", NUMBER, "of one model at once; default: as the device allows"),
        ("max-wait", SECONDS, "refuse a request that would wait longer; default: 10 s"),
        ("max-queue", NUMBER, "requests that wait for a slot at most; default: 1,024"),
        ("lexicon", TEXT, "a .toml or .csv file: how words are read, by all models"),
        ("profile", TEXT, "latency, balanced or throughput; default: balanced"),
        ("live", TEXT, "word or sentence: how a session's text is taken; default: the model's"),
        ("unload-after", SECONDS, "idle seconds, after which a model's memory is given back"),
        ("turn-timeout", SECONDS, "after which a model has hung; default: 60 s; 0: never"),
        ("full-timeout", SECONDS, "a queue full for so long is not ready; default: 30 s"),
        ("device", TEXT, "auto, cpu, cuda, cuda:0, mps"),
        ("dtype", TEXT, "auto, bfloat16, float32"),
        ("weights", TEXT, "full, fp8; see docs/performance.md; default: full"),
        ("backend", TEXT, "see vivace doctor; default: auto"),
        ("threads", NUMBER, "of the CPU; default: 1 for a small model"),
        ("revision", TEXT, "of a hub id: a branch, tag or commit"),
        ("offline", SWITCH, "use the local cache only"),
    )),
    ("limits", (
        ("max-text-chars", NUMBER, "of one request; default: 65,536"),
        ("max-body-bytes", NUMBER, "of one request; default: 14 MiB"),
        ("max-audio-bytes", NUMBER, "of one recording; default: 10 MiB"),
        ("max-message-bytes", NUMBER, "of one message over a socket; default: 256 KiB"),
        ("max-connections", NUMBER, "at once; default: 1,024"),
        ("max-connections-per-address", NUMBER, "at once; default: 512"),
        ("max-voices", NUMBER, "kept over the network; default: 1,000"),
        ("max-requests-per-minute", NUMBER, "of one key or address; default: no limit"),
        ("header-timeout", SECONDS, "for a request's headers; default: 10 s"),
        ("body-timeout", SECONDS, "for a request's body; default: 30 s"),
        ("send-timeout", SECONDS, "a reader that takes nothing is cut; default: 15 s"),
        ("keep-alive", SECONDS, "of an idle connection; default: 30 s"),
        ("socket-idle", SECONDS, "of a WebSocket without a message; default: 300 s"),
        ("drain-timeout", SECONDS, "from SIGTERM until streams are cut; default: 30 s"),
    )),
    ("observability", (
        ("log-format", TEXT, "text or json, a line each; default: text"),
        ("verbose", SWITCH, "print every setting at the start"),
        ("otel", SWITCH, "send traces by OTLP, as the OTEL_* variables say"),
    )),
)  # fmt: skip
WYOMING_FLAGS = {  # the settings of `vivace serve` that `vivace wyoming` has too
    *("host", "zeroconf", "allow-anonymous", "max-streams", "max-wait", "max-queue"),
    *("profile", "unload-after", "live"),
    *("device", "dtype", "weights", "backend", "threads", "revision", "offline", "max-text-chars"),
    *("max-message-bytes", "max-connections", "max-requests-per-minute", "body-timeout"),
    *("max-connections-per-address", "log-format", "verbose", "otel", "turn-timeout"),
    *("send-timeout", "socket-idle", "drain-timeout"),
}


def add_models(parser: argparse.ArgumentParser) -> None:
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


def add_server(parser: argparse.ArgumentParser, only: set[str] | None = None) -> None:
    """The settings of `vivace serve`: None where a flag is not given, so that others decide."""
    for title, flags in FLAGS:
        group = parser.add_argument_group(title)
        for name, kind, words in flags:
            if only is None or name in only:
                group.add_argument(f"--{name}", help=words, **kind)
