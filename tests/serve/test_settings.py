"""Flags over variables over the TOML file over the defaults."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.project import ROOT
from vivace.cli.parser import build_parser
from vivace.errors import RequestError
from vivace.serve.metrics import Metrics
from vivace.serve.models import Models
from vivace.serve.settings import (
    ModelSpec,
    ServeSettings,
    field_names,
    public_name,
    resolve_settings,
    unknown_variables,
)


def test_flags_come_before_variables_and_those_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "vivace.toml"
    file.write_text('port = 1\nhost = "127.0.0.2"\nsend_timeout = 3\nallowed_host = ["a", "b"]\n')
    environment = {"VIVACE_PORT": "2", "VIVACE_SEND_TIMEOUT": "4", "VIVACE_ALLOWED_HOST": "c,d"}
    settings = resolve_settings({"port": 3, "host": None}, environment, file)
    assert (settings.port, settings.host, settings.send_timeout_s) == (3, "127.0.0.2", 4.0)
    assert settings.allowed_hosts == ("c", "d")
    assert resolve_settings({}, environment, file).port == 2
    assert resolve_settings({}, {"VIVACE_CONFIG": str(file)}).port == 1
    assert resolve_settings({}, {}).port == 8000


def test_models_have_names_of_their_own_or_of_their_source(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    sources = ["Qwen/Qwen3-TTS-12Hz-0.6B-Base", f"a/b={tmp_path / 'mine'}", "vivace"]
    sources.append(str(tmp_path / "mine"))
    models = resolve_settings({"models": sources}, {}).models
    assert [spec.name for spec in models] == [sources[0], "a/b", "vivace", "mine"]
    assert models[2] == ModelSpec("vivace", None)
    assert resolve_settings({}, {"VIVACE_MODEL": "x/y"}).models == (ModelSpec("x/y", "x/y"),)
    with pytest.raises(RequestError, match="two models are named 'a'"):
        resolve_settings({"models": ["a=x", "a=y"]}, {})


def test_a_key_that_was_asked_for_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "vivace.toml"
    file.write_text('api_key_env = "NONE_SUCH"\n')
    told = ({"api_key_env": "NONE_SUCH"}, {}, None), ({}, {"VIVACE_API_KEY_ENV": "NONE_SUCH"}, None)
    for flags, environment, config in (*told, ({}, {}, file)):
        with pytest.raises(RequestError, match="NONE_SUCH holds no key"):
            resolve_settings(flags, environment, config)
        assert resolve_settings(flags, {**environment, "NONE_SUCH": "k"}, config).api_keys == ("k",)


@pytest.mark.parametrize(
    "told", [{"max_requests_per_minute": 0}, {"max_streams": 0}, {"header_timeout_s": 0.0}]
)
def test_a_limit_of_nothing_is_refused(told: dict[str, float]) -> None:
    with pytest.raises(RequestError, match="more than 0"):
        resolve_settings(told, {})
    assert resolve_settings({"max_queue": 0, "drain_timeout_s": 0}, {}).max_queue == 0


def test_a_number_is_not_rounded() -> None:
    with pytest.raises(RequestError, match="a whole number is needed"):
        resolve_settings({"port": 80.5}, {})


def test_an_open_address_needs_a_key_or_permission() -> None:
    with pytest.raises(RequestError, match="--allow-anonymous"):
        ServeSettings(host="0.0.0.0")
    assert not ServeSettings(host="0.0.0.0", allow_anonymous=True).is_loopback
    keyed = resolve_settings({"host": "0.0.0.0"}, {"VIVACE_API_KEY": "one, two"})
    assert keyed.api_keys == ("one", "two")
    for host in ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"):
        assert ServeSettings(host=host).is_loopback


def test_no_secret_is_printed() -> None:
    settings = resolve_settings({"api_key_env": "MINE"}, {"MINE": "s3cret"})
    told = f"{settings!r} {settings.describe()}"
    assert "s3cret" not in told
    assert settings.describe()["api_keys"] == "1 from MINE"
    assert settings.describe().keys() >= {"model", "port", "drain_timeout"}


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ({"port": 70000}, {}, "0 to 65535"),
        ({}, {"VIVACE_PORT": "many"}, "VIVACE_PORT: port cannot be 'many'"),
        ({}, {"VIVACE_OFFLINE": "perhaps"}, "true or false"),
        ({"profile": "fast"}, {}, "latency, balanced, throughput"),
        ({"weights": "fp4"}, {}, "full, fp8, not 'fp4'"),
        ({"live": "letter"}, {}, "word, sentence, not 'letter'"),
        ({"api_key_env": "MINE"}, {}, "the variable MINE holds no key"),
        ({"tls_cert": "a.pem"}, {}, "both a certificate and its key"),
        ({"root_path": "tts/"}, {}, "begins with /"),
        ({"models": ["=x"]}, {}, "NAME=SOURCE"),
        ({"max_queue": -1}, {}, "0 or more"),
        ({}, {"VIVACE_MAX_STREAMS": "1e3"}, "VIVACE_MAX_STREAMS: .*'1e3': a whole number"),
        ({}, {"VIVACE_MAX_STREAMS": "0"}, "VIVACE_MAX_STREAMS: .*'0': a number of more than 0"),
        ({}, {"VIVACE_MAX_WAIT": "soon"}, "VIVACE_MAX_WAIT: max_wait cannot be 'soon': a number"),
        ({}, {"VIVACE_MAX_WAIT": "nan"}, "VIVACE_MAX_WAIT: .*a number of 0 or more"),
        ({}, {"VIVACE_KEEP_ALIVE": "-1"}, "VIVACE_KEEP_ALIVE: .*a number of 0 or more"),
        ({}, {"VIVACE_PORT": "tcp://10.0.0.1:80"}, "Kubernetes .*enableServiceLinks"),
    ],
)
def test_an_impossible_setting_is_named(
    flags: dict[str, object], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        resolve_settings(flags, environment)


def test_unknown_variables_are_reported_with_the_nearest_name() -> None:
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


def test_every_setting_is_a_known_variable() -> None:
    names = [f"VIVACE_{public_name(name).upper()}" for name in field_names() if name != "api_keys"]
    assert unknown_variables(dict.fromkeys(names, "1"), set()) == []


def test_changed_settings_are_those_that_differ_from_defaults() -> None:
    assert resolve_settings({}, {}).changed() == []
    settings = resolve_settings({"port": 1, "max_queue": 1_024}, {"VIVACE_API_KEY": "k"})
    assert settings.changed() == ["port", "api_keys"]


@pytest.mark.parametrize(
    ("content", "message"),
    [("port = ", "not valid TOML"), ("ports = 1", "no setting named 'ports'"), (None, "read")],
)
def test_a_file_that_cannot_be_used_is_an_error(
    tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "vivace.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(RequestError, match=message):
        resolve_settings({}, {}, file)


def test_a_key_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "vivace.toml"
    file.write_text('api_keys = ["x"]')
    with pytest.raises(RequestError, match="api_key_env"):
        resolve_settings({}, {}, file)


def test_every_setting_is_a_flag_and_in_the_docs() -> None:
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    flags = vars(build_parser()[0].parse_args(["serve"])).keys()
    for name in set(field_names()) - {"api_keys"}:
        assert public_name(name) in flags
        assert f"`--{public_name(name).replace('_', '-')}`" in page


def test_the_weights_setting_reaches_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def load(*_: object, weights: str, **__: object) -> SimpleNamespace:
        seen.append(weights)
        return SimpleNamespace(lexicon=None)

    monkeypatch.setattr("vivace.serve.models.TTS.load", load)
    for environment in ({}, {"VIVACE_WEIGHTS": "fp8"}):
        settings = resolve_settings({}, environment)
        Models(settings, Metrics())._load_tts(settings.models[0])
    assert seen == ["full", "fp8"]
