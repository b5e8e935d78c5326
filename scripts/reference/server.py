"""The pages of the server's settings and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from annotated_types import Ge, Gt, Le
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from reference.markdown import code, linked, page, sentence, table
from vivace.serve.context import ServeContext
from vivace.serve.server import Server
from vivace.serve.setting_sources import resolve_settings
from vivace.serve.settings import GROUPS, ServeSettings, public_name, setting_names

SETTINGS = """\
`vivace serve` and `vivace wyoming` read each setting from the first source that has it:

1. a flag: `--max-streams 16`
2. an environment variable, `VIVACE_` and the name of the flag: `VIVACE_MAX_STREAMS=16`. Commas
   separate the values of a list.
3. the TOML file of `--config` or `VIVACE_CONFIG`: `max_streams = 16`
4. the default

```toml
# vivace.toml: vivace serve --config vivace.toml
model = ["Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"]
host = "0.0.0.0"
max_streams = 16
allowed_host = ["tts.example.org"]
```

An invalid value is an error that names its source. An unknown `VIVACE_*` variable is reported with
the nearest name and ignored. Times are seconds. API keys are read from an environment variable only
and are never printed. [The server](../server.md) explains models, access and limits."""
METRICS = """\
`GET /metrics` returns these metrics in Prometheus' text format, or in OpenMetrics if the `Accept`
header names it. Label values are models, routes, statuses and error codes, never input of a client.
[Observability](../observability.md) explains how to read them."""
GROUP_TITLES = {"": "Models and voices", "models": "Model execution"}


def settings_page() -> str:
    groups: dict[str, list[tuple[str, ...]]] = {}
    group = ""
    for name in setting_names():
        group = GROUPS.get(name, group)
        groups.setdefault(group, []).append(_setting(name))
    head = ("flag", "type", "default", "description")
    parts = [
        f"## {GROUP_TITLES.get(name, name.capitalize())}\n\n{table(head, rows)}"
        for name, rows in groups.items()
    ]
    return page("Settings", SETTINGS, *parts)


def _setting(name: str) -> tuple[str, ...]:
    field = ServeSettings.model_fields[name]
    flag = "--" + public_name(name).replace("_", "-")
    text = (field.description or "").partition("; default:")[0]
    return code(flag), _kind(field), _default(field), linked(text)


def _kind(field: Any) -> str:
    choices = getattr(field.annotation, "__args__", ())
    if choices and all(isinstance(one, str) for one in choices):
        return ", ".join(map(code, choices))
    text = str(field.annotation)
    for kind, word in (
        ("tuple", "list"),
        ("bool", "switch"),
        ("Literal", "`word`, `sentence`"),
        ("int", "integer"),
        ("float", "seconds"),
        ("Path", "path"),
    ):
        if kind in text:
            return word + _bounds(field)
    return "text"


def _bounds(field: Any) -> str:
    words = []
    for one in field.metadata:
        if isinstance(one, Ge):
            words.append(f"at least {one.ge}")
        elif isinstance(one, Gt):
            words.append(f"above {one.gt}")
        elif isinstance(one, Le):
            words.append(f"at most {one.le}")
    return f", {', '.join(words)}" if words else ""


def _default(field: Any) -> str:
    own = (field.description or "").partition("; default: ")[2]
    if own:
        return own
    value = field.default
    if value is None or value == () or value == "":
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (int, float)):
        return f"{value:g}"
    return code(value)


def metrics_page() -> str:
    context = ServeContext.create(resolve_settings({}, {}))
    Server(context)
    text = context.metrics.render()[0].decode("utf-8")
    families = list(text_string_to_metric_families(text))
    own = [one for one in families if one.name.startswith("vivace_")]
    process = [one for one in families if one.name.startswith("process_")]
    head = ("metric", "type", "labels", "description")
    return page(
        "Metrics",
        METRICS,
        table(head, map(_metric, sorted(own, key=lambda one: one.name))),
        "## Process\n\n" + PROCESS,
        table(head, map(_metric, sorted(process, key=lambda one: one.name))),
    )


PROCESS = "Metrics of the server's process. All but `process_threads` exist on Linux only."
GAUGE_LABELS = {"vivace_device_memory_bytes": "`kind`"}  # without a GPU this gauge has no series


def _metric(family: Metric) -> tuple[str, ...]:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = GAUGE_LABELS.get(name) or ", ".join(map(code, _labels(family)))
    return code(name), family.type, labels, sentence(family.documentation)


def _labels(family: Metric) -> Iterator[str]:
    found = dict.fromkeys(label for sample in family.samples for label in sample.labels)
    return (label for label in found if label != "le")
