"""The server's settings: flags, then `VIVACE_*` variables, then a TOML file, then the defaults.

One frozen object that every part of the server reads; secrets are left out of what is printed.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from vivace.errors import RequestError
from vivace.speech import LIVE_MODES, LiveMode

EMBEDDED = "vivace"  # the name that the voice inside the package is served by
MIB = 2**20
UNPRINTED = ("api_keys", "api_key_env")
PROFILES = ("latency", "balanced", "throughput")
Weights = Literal["full", "fp8"]
WEIGHTS = get_args(Weights)
LOG_FORMATS = ("text", "json")
PREFIX = "VIVACE_"
OTHER_VARIABLES = {f"{PREFIX}{name}" for name in ("API_KEY", "CONFIG", "HOME", "COMMIT")}
# Kubernetes sets these in every pod beside a service of the name `vivace`.
SERVICE_LINK = re.compile(rf"{PREFIX}(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")
OPTIONAL = {"max_queue", "max_voices", "drain_timeout_s", "unload_after_s", "turn_timeout_s"}
OPTIONAL |= {"full_timeout_s", "max_wait_s"}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model to serve, written `SOURCE` or `NAME=SOURCE`."""

    name: str  # what requests call it; slashes are allowed
    source: str | None  # a hub id or a folder; None: the voice inside the package

    @classmethod
    def parse(cls, text: str) -> ModelSpec:
        name, has_name, source = text.rpartition("=")
        if not source or (has_name and not name):
            raise RequestError(f"a model is SOURCE or NAME=SOURCE, not {text!r}")
        if source == EMBEDDED:
            return cls(name or EMBEDDED, None)
        is_folder = os.path.isdir(source)
        return cls(name or (Path(source).resolve().name if is_folder else source), source)

    def __str__(self) -> str:
        return f"{self.name}={self.source or 'the embedded voice'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """What `vivace serve` was told; an impossible combination is a RequestError."""

    models: tuple[ModelSpec, ...] = (ModelSpec(EMBEDDED, None),)  # the first is the default
    voices: Path | str | None = None  # a folder, or a store's URL; None: the user's own folder
    host: str = "127.0.0.1"
    port: int = 8000
    wyoming_port: int | None = None  # Home Assistant's protocol, on the same host
    zeroconf: bool = False  # announce the Wyoming port on the network
    root_path: str = ""  # the sub-path that a proxy in front takes off
    # who may ask
    api_key_env: str = "VIVACE_API_KEY"  # the variable that holds the keys, with commas between
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    allow_anonymous: bool = False  # on an address that is not loopback
    public_lists: bool = False  # models and voices without a key
    allowed_hosts: tuple[str, ...] = ()  # besides addresses and localhost
    allowed_origins: tuple[str, ...] = ()  # of browsers' pages, besides our own
    tls_cert: Path | None = None
    tls_key: Path | None = None
    # the models
    max_streams: int | None = None  # a model; None: as `TTS.load`
    max_queue: int = 1_024  # requests that wait for a slot, a model
    max_wait_s: float = 10.0  # a request whose estimated wait is longer is refused
    profile: Literal["latency", "balanced", "throughput"] = "balanced"
    lexicon: Path | None = None  # how words are read, by all models
    live: LiveMode | None = None  # how a session's text is taken; None: as each model wants
    device: str = "auto"
    dtype: str = "auto"
    weights: Weights = "full"
    backend: str = "auto"
    threads: int | None = None
    revision: str | None = None
    offline: bool = False
    turn_timeout_s: float = 60.0  # after a turn of so long the model has hung; 0: never
    full_timeout_s: float = 30.0  # a queue that was full for so long is not ready; 0: it is
    unload_after_s: float | None = None  # idle so long, a model gives its memory back
    # limits
    max_text_chars: int = 65_536  # of one request, and of one utterance over a socket
    max_body_bytes: int = 14 * MIB  # of a request
    max_audio_bytes: int = 10 * MIB  # of a recording, decoded from base64
    max_message_bytes: int = 256 * 1024  # of one message over a socket
    max_connections: int = 1_024  # 64 more are answered on /health only
    max_connections_per_address: int = 512  # as many more, likewise; a proxy is one address
    max_voices: int = 1_000  # in the library, created over the network
    max_requests_per_minute: int | None = None  # of one key, or of one address without keys
    header_timeout_s: float = 10.0  # from the connection to the end of the headers
    body_timeout_s: float = 30.0  # from there to the end of the body
    send_timeout_s: float = 15.0  # a reader that takes no byte for so long is cut
    keep_alive_s: float = 30.0  # an idle connection
    socket_idle_s: float = 300.0  # a WebSocket without a message and without speech
    drain_timeout_s: float = 30.0  # from SIGTERM until running streams are cut
    # what can be seen
    log_format: Literal["text", "json"] = "text"
    verbose: bool = False  # print every setting at the start
    otel: bool = False  # send traces; the OTEL_* variables say where to

    def __post_init__(self) -> None:
        if not self.models:
            raise RequestError("there is no model to serve")
        names = [spec.name for spec in self.models]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise RequestError(f"two models are named {twice[0]!r}; write NAME=SOURCE for one")
        if self.profile not in PROFILES:
            raise RequestError(f"profile is one of {', '.join(PROFILES)}, not {self.profile!r}")
        if self.weights not in WEIGHTS:
            raise RequestError(f"weights is one of {', '.join(WEIGHTS)}, not {self.weights!r}")
        if self.live not in (None, *LIVE_MODES):
            raise RequestError(f"live is one of {', '.join(LIVE_MODES)}, not {self.live!r}")
        if self.log_format not in LOG_FORMATS:
            raise RequestError(f"log_format is text or json, not {self.log_format!r}")
        for port in (self.port, self.wyoming_port or 0):
            if not 0 <= port <= 65_535:
                raise RequestError(f"a port is 0 to 65535, not {port}")
        for name in field_names():
            if _is_limit(name) and getattr(self, name) == 0:
                raise RequestError(f"{public_name(name)} has to be more than 0")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise RequestError("TLS needs both a certificate and its key")
        if self.root_path and not (self.root_path.startswith("/") and self.root_path[-1] != "/"):
            raise RequestError(
                f"a root path begins with / and ends without, not {self.root_path!r}"
            )
        if self.wyoming_port is not None and not (self.is_loopback or self.allow_anonymous):
            raise RequestError(
                f"{self.host} can be reached from outside and Wyoming has no keys: let everybody "
                "in at its port with --allow-anonymous; HTTP still asks for a key where one is set"
            )
        if not (self.is_loopback or self.api_keys or self.allow_anonymous):
            raise RequestError(
                f"{self.host} can be reached from outside: set a key in {self.api_key_env}, "
                "or let everybody in with --allow-anonymous"
            )
        if self.zeroconf and (self.wyoming_port is None or self.is_loopback):
            raise RequestError(
                "--zeroconf announces the Wyoming port to other machines: it needs one, and a "
                "--host that they can reach, such as 0.0.0.0"
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
        """Every setting as it was resolved, for printing; of secrets only how many there are."""
        fields = {name: getattr(self, name) for name in field_names() if name not in UNPRINTED}
        shown = {public_name(name): _show(value) for name, value in fields.items()}
        return {**shown, "api_keys": f"{len(self.api_keys)} from {self.api_key_env}"}

    def changed(self) -> list[str]:
        """Public names of the settings that differ from their defaults."""
        fields = (each for each in dataclasses.fields(self) if each.name not in UNPRINTED)
        names = [each.name for each in fields if getattr(self, each.name) != each.default]
        return [public_name(name) for name in names] + ["api_keys"] * bool(self.api_keys)


def resolve_settings(
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    config: Path | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> ServeSettings:
    """Flags (None: not given) over `VIVACE_<SETTING>` over the TOML file over the defaults."""
    told: dict[str, Any] = dict(defaults or {})
    if config is None and (named := environment.get("VIVACE_CONFIG")):
        config = Path(named)
    if config is not None:
        told |= {name: _read(name, value, str(config)) for name, value in _toml(config).items()}
    for name in field_names():
        variable = _variable(name)
        if name != "api_keys" and environment.get(variable):
            told[name] = _read(name, environment[variable], variable)
    told |= {name: _read(name, value, "") for name, value in flags.items() if value is not None}
    keys = environment.get(told.get("api_key_env", "VIVACE_API_KEY"), "")
    told["api_keys"] = tuple(key.strip() for key in keys.split(",") if key.strip())
    if told.get("api_key_env") and not told["api_keys"]:
        raise RequestError(f"the variable {told['api_key_env']} holds no key; set it first")
    return ServeSettings(**told)


def unknown_variables(environment: Mapping[str, str], others: set[str]) -> list[str]:
    """A message for each `VIVACE_*` variable that has no meaning; `others` are known too."""
    settings = {_variable(name) for name in field_names() if name != "api_keys"}
    known = {*settings, *OTHER_VARIABLES, *others}
    messages = []
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in known or SERVICE_LINK.fullmatch(name):
            continue
        near = difflib.get_close_matches(name, sorted(known), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        messages.append(f"{name} is not a setting and is ignored{hint}")
    return messages


def _variable(field_name: str) -> str:
    return f"{PREFIX}{public_name(field_name).upper()}"


def field_names() -> list[str]:
    return [each.name for each in dataclasses.fields(ServeSettings)]


def _is_limit(name: str) -> bool:
    """Of what there has to be some; no queue, no voices made and no wait at a drain are fine."""
    return name not in OPTIONAL and (name.startswith("max_") or name.endswith("_s"))


def public_name(field_name: str) -> str:
    """The name in flags, variables and TOML: one model, one host, seconds without an ending."""
    singular = {"models": "model", "allowed_hosts": "allowed_host"}
    singular |= {"allowed_origins": "allowed_origin"}
    return singular.get(field_name, field_name.removesuffix("_s"))


def _toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        told = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise RequestError(f"{path}: not valid TOML: {error}") from error
    return by_field(told, str(path))


def by_field(told: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings of a TOML file, or of Ray's arguments, by the fields' own names."""
    fields = {public_name(name): name for name in field_names() if name != "api_keys"}
    if unknown := sorted(set(told) - set(fields)):
        hint = "; a key is read from the variable that api_key_env names"
        raise RequestError(
            f"{where}: no setting named {unknown[0]!r}; try one of: {', '.join(sorted(fields))}"
            f"{hint if 'key' in unknown[0] else ''}"
        )
    return {fields[name]: value for name, value in told.items()}


def _read(name: str, value: Any, where: str) -> Any:
    """The setting's own type, of a flag's, a variable's or a TOML value."""
    try:
        read = _READERS[_kind_of(name)](value)
        if read == 0 and read is not False and _is_limit(name):
            raise ValueError("a number of more than 0 is needed")
        return read
    except (TypeError, ValueError) as error:
        source = f"{where}: " if where else ""
        hint = ""
        if where == _variable("port") and "://" in str(value):
            hint = (
                "; Kubernetes sets this variable for a service of the name vivace: "
                "set enableServiceLinks: false in the pod, or give --port"
            )
        raise RequestError(
            f"{source}{public_name(name)} cannot be {value!r}: {error}{hint}"
        ) from error


def _kind_of(name: str) -> str:
    kind = next(each.type for each in dataclasses.fields(ServeSettings) if each.name == name)
    return cast(str, kind).removesuffix(" | None")


def _words(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(str(part).strip() for part in parts if str(part).strip())


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("1", "true", "yes", "on"):
        return True
    if str(value).lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("write true or false")


def _above_0(kind: type[int] | type[float]) -> Callable[[Any], int | float]:
    def read(value: Any) -> int | float:
        if isinstance(value, bool):
            raise ValueError("a number is needed")
        try:
            number = kind(value)
        except ValueError:
            kinds = {int: "a whole number", float: "a number"}
            raise ValueError(f"{kinds[kind]} is needed") from None
        if isinstance(value, float) and number != value:
            raise ValueError("a whole number is needed")
        if not 0 <= number < float("inf"):
            raise ValueError("a number of 0 or more is needed")
        return number

    return read


_READERS: dict[str, Callable[[Any], Any]] = {
    "tuple[ModelSpec, ...]": lambda value: tuple(map(ModelSpec.parse, _words(value))),
    "tuple[str, ...]": _words,
    "Path": Path,
    "Path | str": lambda value: value if "://" in str(value) else Path(value),
    "str": str,
    "LiveMode": str,
    "Weights": str,
    "Literal['latency', 'balanced', 'throughput']": str,
    'Literal["latency", "balanced", "throughput"]': str,
    "Literal['text', 'json']": str,
    'Literal["text", "json"]': str,
    "int": _above_0(int),
    "float": _above_0(float),
    "bool": _truth,
}


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value in (None, "") else str(value)
