"""Settings from flags, environment variables, a TOML file and defaults, in this order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.project import ROOT
from vivace.cli.parser import build_parser
from vivace.errors import RequestError
from vivace.serve.models.registry import ModelRegistry
from vivace.serve.observability.metrics import Metrics
from vivace.serve.setting_sources import resolve_settings, unknown_variables
from vivace.serve.settings import ModelSpec, ServeSettings, public_name, setting_names


def test_flags_override_variables_and_variables_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "vivace.toml"
    file.write_text('port = 1\nhost = "127.0.0.2"\nsend_timeout = 3\nallowed_host = ["a", "b"]\n')
    environment = {"VIVACE_PORT": "2", "VIVACE_SEND_TIMEOUT": "4", "VIVACE_ALLOWED_HOST": "c,d"}
    settings = resolve_settings({"port": 3, "host": None}, environment, file)
    assert (settings.port, settings.host, settings.send_timeout_s) == (3, "127.0.0.2", 4.0)
    assert settings.allowed_hosts == ("c", "d")
    assert resolve_settings({}, environment, file).port == 2
    assert resolve_settings({}, {"VIVACE_CONFIG": str(file)}).port == 1
    assert resolve_settings({}, {}).port == 8000


def test_model_name_defaults_to_its_source(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    sources = ["Qwen/Qwen3-TTS-12Hz-0.6B-Base", f"a/b={tmp_path / 'mine'}", "vivace"]
    sources.append(str(tmp_path / "mine"))
    models = resolve_settings({"models": sources}, {}).models
    assert [spec.name for spec in models] == [sources[0], "a/b", "vivace", "mine"]
    assert models[2] == ModelSpec("vivace", None)
    assert resolve_settings({}, {"VIVACE_MODEL": "x/y"}).models == (ModelSpec("x/y", "x/y"),)
    with pytest.raises(RequestError, match="two models are named 'a'"):
        resolve_settings({"models": ["a=x", "a=y"]}, {})


def test_api_key_env_without_a_key_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "vivace.toml"
    file.write_text('api_key_env = "NONE_SUCH"\n')
    name = "NONE_SUCH"
    sources: list[tuple[dict[str, Any], dict[str, str], Path | None]] = [
        ({"api_key_env": name}, {}, None),
        ({}, {"VIVACE_API_KEY_ENV": name}, None),
        ({}, {}, file),
    ]
    for flags, environment, config in sources:
        with pytest.raises(RequestError, match="NONE_SUCH holds no API key"):
            resolve_settings(flags, environment, config)
        assert resolve_settings(flags, {**environment, "NONE_SUCH": "k"}, config).api_keys == ("k",)


@pytest.mark.parametrize(
    "flags", [{"max_requests_per_minute": 0}, {"max_streams": 0}, {"header_timeout_s": 0.0}]
)
def test_limit_of_zero_is_an_error(flags: dict[str, float]) -> None:
    with pytest.raises(RequestError, match="greater than 0"):
        resolve_settings(flags, {})
    assert resolve_settings({"max_queue": 0, "drain_timeout_s": 0}, {}).max_queue == 0


def test_timeouts_of_zero_disable_the_checks() -> None:
    settings = resolve_settings({"full_timeout_s": 0.0, "turn_timeout_s": 0.0}, {})
    assert (settings.full_timeout_s, settings.turn_timeout_s) == (0.0, 0.0)
    with pytest.raises(RequestError, match="max_connections_per_address"):
        resolve_settings({"max_connections_per_address": 0}, {})


def test_fractional_port_is_not_rounded() -> None:
    with pytest.raises(RequestError, match="valid integer"):
        resolve_settings({"port": 80.5}, {})


@pytest.mark.parametrize("line", ["port = true", "send_timeout = false", "threads = true"])
def test_boolean_for_a_number_is_an_error(tmp_path: Path, line: str) -> None:
    file = tmp_path / "vivace.toml"
    file.write_text(line)
    with pytest.raises(RequestError, match=r"vivace\.toml: \w+ cannot be (True|False)"):
        resolve_settings({}, {}, file)


def test_flag_replaces_an_invalid_variable() -> None:
    assert resolve_settings({"port": 1}, {"VIVACE_PORT": "tcp://10.0.0.1:80"}).port == 1


def test_public_address_needs_a_key_or_allow_anonymous() -> None:
    with pytest.raises(RequestError, match="--allow-anonymous"):
        resolve_settings({"host": "0.0.0.0"}, {})
    assert not ServeSettings(host="0.0.0.0", allow_anonymous=True).is_loopback
    keyed = resolve_settings({"host": "0.0.0.0"}, {"VIVACE_API_KEY": "one, two"})
    assert keyed.api_keys == ("one", "two")
    for host in ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"):
        assert ServeSettings(host=host).is_loopback


def test_describe_and_repr_omit_api_keys() -> None:
    settings = resolve_settings({"api_key_env": "MINE"}, {"MINE": "s3cret"})
    assert "s3cret" not in f"{settings!r} {settings.describe()}"
    assert settings.describe()["api_keys"] == "1 from MINE"
    assert settings.describe().keys() >= {"model", "port", "drain_timeout"}


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ({"port": 70000}, {}, "port cannot be 70000: .*65535"),
        ({}, {"VIVACE_PORT": "many"}, "VIVACE_PORT: port cannot be 'many'"),
        (
            {},
            {"VIVACE_OFFLINE": "perhaps"},
            "VIVACE_OFFLINE: offline cannot be 'perhaps': .*valid boolean",
        ),
        ({"profile": "fast"}, {}, "'latency', 'balanced' or 'throughput'"),
        ({"weights": "fp4"}, {}, "'fp4': .*'full', 'fp8', 'int8' or 'int4'"),
        ({"live": "letter"}, {}, "'letter': .*'word' or 'sentence'"),
        ({"api_key_env": "MINE"}, {}, "the variable MINE holds no API key"),
        ({"tls_cert": "a.pem"}, {}, "both a certificate and its key"),
        ({"root_path": "tts/"}, {}, "begins with /"),
        ({"voices": __file__}, {}, "voices cannot be .*: it is a file"),
        ({"models": ["=x"]}, {}, "NAME=SOURCE"),
        ({"max_queue": -1}, {}, "max_queue cannot be -1: .*greater than or equal to 0"),
        ({}, {"VIVACE_MAX_STREAMS": "1e3"}, "VIVACE_MAX_STREAMS: .*'1e3': .*valid integer"),
        ({}, {"VIVACE_MAX_STREAMS": "0"}, "VIVACE_MAX_STREAMS: .*'0': .*greater than 0"),
        ({}, {"VIVACE_MAX_WAIT": "soon"}, "VIVACE_MAX_WAIT: max_wait cannot be 'soon': .*number"),
        ({}, {"VIVACE_MAX_WAIT": "nan"}, "VIVACE_MAX_WAIT: .*finite number"),
        ({}, {"VIVACE_KEEP_ALIVE": "-1"}, "VIVACE_KEEP_ALIVE: .*greater than 0"),
        ({}, {"VIVACE_PORT": "tcp://10.0.0.1:80"}, "Kubernetes .*enableServiceLinks"),
    ],
)
def test_invalid_setting_error_names_source_and_value(
    flags: dict[str, object], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        resolve_settings(flags, environment)


def test_unknown_variable_is_reported_with_the_nearest_name() -> None:
    environment = {
        "VIVACE_MAX_STREMS": "3",
        "VIVACE_QQQQQQQQ": "1",
        "HOME": "/",
        "VIVACE_PORT": "1",
    }
    environment |= {"VIVACE_MY_KEYS": "k", "VIVACE_HOME": "/x", "VIVACE_CONFIG": "c"}
    environment |= {"VIVACE_SERVICE_HOST": "10.0.0.1", "VIVACE_PORT_8000_TCP_ADDR": "10.0.0.1"}
    messages = unknown_variables(environment, {"VIVACE_MY_KEYS"})
    assert messages == [
        "VIVACE_MAX_STREMS is not a setting and is ignored; did you mean VIVACE_MAX_STREAMS?",
        "VIVACE_QQQQQQQQ is not a setting and is ignored",
    ]


def test_variable_of_every_setting_is_known() -> None:
    names = [f"VIVACE_{public_name(name).upper()}" for name in setting_names()]
    assert unknown_variables(dict.fromkeys(names, "1"), set()) == []


def test_changed_lists_settings_that_differ_from_defaults() -> None:
    assert resolve_settings({}, {}).changed() == []
    settings = resolve_settings({"port": 1, "max_queue": 1_024}, {"VIVACE_API_KEY": "k"})
    assert settings.changed() == ["port", "api_keys"]


@pytest.mark.parametrize(
    ("content", "message"),
    [("port = ", "not valid TOML"), ("ports = 1", "no setting named 'ports'"), (None, "read")],
)
def test_unusable_config_file_is_an_error(
    tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "vivace.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(RequestError, match=message):
        resolve_settings({}, {}, file)


def test_api_key_in_the_config_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "vivace.toml"
    file.write_text('api_keys = ["x"]')
    with pytest.raises(RequestError, match="api_key_env"):
        resolve_settings({}, {}, file)


def test_every_setting_has_a_flag_and_a_line_in_the_docs() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    flags = vars(build_parser()[0].parse_args(["serve"])).keys()
    for name in setting_names():
        assert public_name(name) in flags
        assert f"`--{public_name(name).replace('_', '-')}`" in page


def test_weights_setting_is_passed_to_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def load(*_: object, weights: str, **__: object) -> SimpleNamespace:
        seen.append(weights)
        return SimpleNamespace(lexicon=None)

    monkeypatch.setattr("vivace.serve.models.registry.TTS.load", load)
    for environment in ({}, {"VIVACE_WEIGHTS": "fp8"}):
        settings = resolve_settings({}, environment)
        ModelRegistry(settings, Metrics())._load_tts(settings.models[0])
    assert seen == ["full", "fp8"]
