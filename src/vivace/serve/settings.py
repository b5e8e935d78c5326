"""The server's settings: each is declared once with its type, bounds, default and help text.

`setting_sources.py` merges flags, `VIVACE_*` variables and a TOML file. `cli/server_options.py`
generates the flags from the model.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from vivace.errors import RequestError
from vivace.mark.levels import CHOICES, DEFAULT_MARK, MarkLevels
from vivace.mark.marking import Marking
from vivace.speech import THREADS, LiveMode

EMBEDDED = "vivace"  # model name of the embedded voice
MIB = 2**20
PREFIX = "VIVACE_"
SECRETS = ("api_keys", "api_key_env")  # never printed, and no flags for keys themselves
SINGULAR = {"models": "model", "allowed_hosts": "allowed_host", "allowed_origins": "allowed_origin"}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model to serve, written `SOURCE` or `NAME=SOURCE`."""

    name: str  # the name in requests; slashes are allowed
    source: str | None  # a hub id or a folder; None: the embedded voice
    adapter: Path | None = None  # of `vivace finetune`, merged into the weights
    adapters: tuple[Path, ...] = ()  # chosen per request; their names are those of the files

    @property
    def adapter_paths(self) -> dict[str, Path]:
        """The files of `adapters` by name, in the order of their numbers."""
        return {path.stem: path for path in self.adapters}

    @classmethod
    def parse(cls, text: str) -> ModelSpec:
        name, has_name, source = text.rpartition("=")
        if not source or (has_name and not name):
            raise RequestError(f"write SOURCE or NAME=SOURCE, not {text!r}")
        if source == EMBEDDED:
            return cls(name or EMBEDDED, None)
        is_folder = os.path.isdir(source)
        return cls(name or (Path(source).resolve().name if is_folder else source), source)

    def __str__(self) -> str:
        return f"{self.name}={self.source or 'the embedded voice'}"


def _split(value: Any) -> Any:
    """Split the value of an environment variable at commas."""
    return [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _parse_model(value: Any) -> Any:
    return ModelSpec.parse(value.strip()) if isinstance(value, str) else value


def _parse_store(value: Any) -> Any:
    store = Path(value) if isinstance(value, str) and "://" not in value else value
    if isinstance(store, Path) and store.is_file():
        raise ValueError("it is a file; a folder is needed")
    return store


def _field(default: Any, help_text: str, **bounds: Any) -> Any:
    return Field(default, description=help_text, **bounds)


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Models = Annotated[
    tuple[Annotated[ModelSpec, BeforeValidator(_parse_model)], ...], BeforeValidator(_split)
]
# The first setting of each group in `vivace serve --help`; earlier settings have no group.
GROUPS = {
    "host": "address",
    "api_key_env": "access",
    "max_streams": "models",
    "max_text_chars": "limits",
    "mark": "marks",
    "log_format": "observability",
}


class ServeSettings(BaseModel):
    """Settings of one server. `resolve_settings` turns validation errors into RequestErrors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
        str_strip_whitespace=True,
    )

    models: Models = _field(
        (ModelSpec(EMBEDDED, None),),
        "hub id or checkpoint folder, optionally with a name; repeatable, and the first is the "
        "default model; default: the embedded voice",
        min_length=1,
    )
    voices: Annotated[Path | str | None, BeforeValidator(_parse_store)] = _field(
        None, "folder of the voice library, or URL of a shared store; default: your own"
    )
    adapters: Path | None = _field(
        None, "folder of adapters (`vivace finetune`) of the first model, served as voices"
    )

    host: str = _field("127.0.0.1", "address to listen on")
    port: int = _field(8000, "TCP port; 0 takes a free one", ge=0, le=65_535)
    wyoming_port: int | None = _field(
        None, "also serve Wyoming (Home Assistant); usually 10200", ge=0, le=65_535
    )
    zeroconf: bool = _field(False, "announce the Wyoming port on the network")
    workers: int | None = _field(
        None,
        "processes for HTTP beside the engine's; default: by cores with a GPU, or 1",
        ge=1,
        le=64,
    )
    root_path: str = _field("", "path prefix that a reverse proxy removes, such as /tts")
    tls_cert: Path | None = _field(None, "certificate file for https")
    tls_key: Path | None = _field(None, "private key file for https")

    api_key_env: str = _field("VIVACE_API_KEY", "variable with the API keys, separated by commas")
    api_keys: tuple[str, ...] = Field(default=(), repr=False)
    allow_anonymous: bool = _field(False, "serve other machines without an API key")
    public_lists: bool = _field(False, "list models and voices without a key, for Open WebUI")
    allowed_hosts: Names = _field((), "host name besides IP addresses and localhost; repeatable")
    allowed_origins: Names = _field((), "web origin that may use the server (CORS); repeatable")

    max_streams: int | None = _field(
        None, "concurrent streams of one model; default: as the device allows", gt=0
    )
    max_wait_s: float = _field(10.0, "refuse a request whose estimated wait is longer", ge=0)
    max_queue: int = _field(1_024, "requests of one model that may wait", ge=0)
    lexicon: Path | None = _field(None, ".toml or .csv file with pronunciations, for all models")
    profile: Literal["latency", "balanced", "throughput"] = _field(
        "balanced", "latency, balanced or throughput"
    )
    live: LiveMode | None = _field(
        None, "speak live text by word or by sentence; default: the model's own mode"
    )
    unload_after_s: float | None = _field(
        None, "idle time until a model is unloaded; default: never", ge=0
    )
    turn_timeout_s: float = _field(60.0, "reload a model whose turn takes longer; 0: never", ge=0)
    full_timeout_s: float = _field(
        30.0, "report not ready while a queue is full for longer; 0: never", ge=0
    )
    device: str = _field("auto", "auto, cpu, cuda, cuda:0 or mps")
    dtype: str = _field("auto", "auto, bfloat16 or float32")
    weights: Literal["full", "fp8", "int8", "int4"] = _field(
        "full", "full, fp8 (docs/performance.md), int8 or int4 (docs/cpu.md)"
    )
    backend: str = _field("auto", "backend name, see vivace doctor")
    threads: int | None = _field(
        None, "CPU threads; default: 1 for a small model", ge=THREADS.low, le=THREADS.high
    )
    revision: str | None = _field(None, "branch, tag or commit of a hub id")
    offline: bool = _field(False, "use the local cache only")

    max_text_chars: int = _field(65_536, "characters of a request or socket utterance", gt=0)
    max_body_bytes: int = _field(14 * MIB, "size of one request body", gt=0)
    max_audio_bytes: int = _field(10 * MIB, "size of one recording", gt=0)
    max_message_bytes: int = _field(256 * 1024, "size of one socket message", gt=0)
    max_connections: int = _field(1_024, "open connections; 64 more on /health only", gt=0)
    max_connections_per_address: int = _field(512, "open connections of one address", gt=0)
    max_voices: int = _field(1_000, "voices created over the network", ge=0)
    max_requests_per_minute: int | None = _field(
        None, "requests of one key, or of one address; default: no limit", gt=0
    )
    header_timeout_s: float = _field(10.0, "time to receive request headers", gt=0)
    body_timeout_s: float = _field(30.0, "time to receive a request body", gt=0)
    send_timeout_s: float = _field(15.0, "time without a received byte until a disconnect", gt=0)
    keep_alive_s: float = _field(30.0, "idle time until a connection is closed", gt=0)
    socket_idle_s: float = _field(300.0, "idle time until a WebSocket is closed", gt=0)
    drain_timeout_s: float = _field(30.0, "time from SIGTERM until streams are cut off", ge=0)

    mark: str = _field(DEFAULT_MARK, f"how speech is marked as AI-generated: {CHOICES}")
    c2pa_cert: Path | None = _field(None, "PEM file with the certificate for c2pa, then its chain")
    c2pa_key: Path | None = _field(None, "PEM file with the private key of that certificate")
    c2pa_timestamp_url: str | None = _field(
        None, "timestamp authority for c2pa; default: no timestamps"
    )

    log_format: Literal["text", "json"] = _field("text", "text or json")
    verbose: bool = _field(False, "print every setting at start-up")
    otel: bool = _field(False, "send OTLP traces, as the OTEL_* variables configure")

    @field_validator("*", mode="before")
    @classmethod
    def _reject_switches_as_numbers(cls, value: Any, info: Any) -> Any:
        """Pydantic reads true as 1."""
        is_switch = cls.model_fields[info.field_name].annotation is bool
        if isinstance(value, bool) and not is_switch:
            raise ValueError("a value is needed, not true or false")
        return value

    @property
    def served_models(self) -> tuple[ModelSpec, ...]:
        """`models`, the first of them with the adapters. Raises RequestError.

        Adapters that cannot be chosen per request have a model of their own each, with the adapter
        merged into its weights.
        """
        if self.adapters is None:
            return self.models
        if not self.adapters.is_dir():
            raise RequestError(f"adapters: {self.adapters} is not a folder")
        paths = sorted(self.adapters.glob("*.safetensors"))
        if not paths:
            raise RequestError(f"adapters: {self.adapters} has no .safetensors files")
        from vivace.tts import mixable_adapters  # imports numpy

        first, *others = self.models
        where = (first.source, self.device, self.backend)
        mixed = mixable_adapters(paths, *where, self.weights)
        merged = (ModelSpec(path.stem, first.source, path) for path in paths if path not in mixed)
        return (replace(first, adapters=mixed), *others, *merged)

    @model_validator(mode="after")
    def _check_combinations(self) -> ServeSettings:
        specs = self.served_models
        names = [name for spec in specs for name in (spec.name, *spec.adapter_paths)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise RequestError(f"two models are named {twice[0]!r}; write NAME=SOURCE for one")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise RequestError("tls_cert and tls_key: TLS needs both a certificate and its key")
        MarkLevels.parse(self.mark)
        if self.root_path and not (self.root_path.startswith("/") and self.root_path[-1] != "/"):
            raise RequestError(
                f"root_path {self.root_path!r} is not valid: it begins with / and does not end "
                "with /, such as /tts"
            )
        if self.wyoming_port is not None and not (self.is_loopback or self.allow_anonymous):
            raise RequestError(
                f"{self.host} can be reached from other machines and Wyoming has no API keys: "
                "allow every client of its port with --allow-anonymous; HTTP still needs a key if "
                "one is set"
            )
        if not (self.is_loopback or self.api_keys or self.allow_anonymous):
            raise RequestError(
                f"{self.host} can be reached from other machines: set a key in "
                f"{self.api_key_env}, or allow every client with --allow-anonymous"
            )
        if self.zeroconf and (self.wyoming_port is None or self.is_loopback):
            raise RequestError(
                "--zeroconf announces the Wyoming port to other machines: set --wyoming-port, and "
                "a --host that they can reach, such as 0.0.0.0"
            )
        return self

    def load_marking(self) -> Marking:
        """Load what `mark` needs. Raises RequestError."""
        return Marking.load(
            self.mark,
            certificate=self.c2pa_cert,
            key=self.c2pa_key,
            timestamp_url=self.c2pa_timestamp_url,
        )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def scheme(self) -> str:
        return "http" if self.tls_cert is None else "https"

    def describe(self) -> dict[str, str]:
        """Return every setting as text by its public name; of API keys only their number."""
        shown = {public_name(name): _show(value) for name, value in self if name not in SECRETS}
        return {**shown, "api_keys": f"{len(self.api_keys)} from {self.api_key_env}"}

    def changed(self) -> list[str]:
        """Return the public names of the settings that differ from their defaults."""
        fields = type(self).model_fields
        names = [n for n, value in self if n not in SECRETS and value != fields[n].default]
        return [public_name(name) for name in names] + ["api_keys"] * bool(self.api_keys)


def setting_names() -> list[str]:
    """Return the field names of all settings that flags, variables and TOML files can set."""
    return [name for name in ServeSettings.model_fields if name != "api_keys"]


def variable_of(field_name: str) -> str:
    return f"{PREFIX}{public_name(field_name).upper()}"


def public_name(field_name: str) -> str:
    """Return the name in flags, variables and TOML: lists in the singular, seconds without `_s`."""
    return SINGULAR.get(field_name, field_name.removesuffix("_s"))


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value in (None, "") else str(value)
