"""Generates the flags of `vivace serve` and `vivace wyoming` from the server's settings.

The settings need pydantic, so the parser calls `add_settings` only when one of the two commands is
chosen.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from typing import Any, get_args

from vivace.errors import RequestError, install_command

PACKAGES = (
    *("pydantic", "fastapi", "uvicorn", "websockets", "python_multipart", "prometheus_client"),
)
METAVARS = {"models": "[NAME=]SOURCE", "voices": "DIR"}
HTTP_ONLY = {  # settings that `vivace wyoming` does not offer
    *(
        "port",
        "workers",
        "root_path",
        "tls_cert",
        "tls_key",
        "api_key_env",
        "api_keys",
        "public_lists",
    ),
    *("allowed_host", "allowed_origin", "lexicon", "full_timeout", "max_body_bytes"),
    *("max_audio_bytes", "max_voices", "header_timeout", "keep_alive"),
}


def add_settings(parser: argparse.ArgumentParser, *, has_http: bool) -> None:
    """Add a flag for every setting. A flag that is not given is None."""
    check_packages()
    from vivace.serve.settings import GROUPS, ServeSettings, public_name, setting_names

    parser.add_argument(
        "--config", metavar="FILE", help="TOML file with settings, such as port = 8000"
    )
    group: argparse._ActionsContainer = parser
    for name in setting_names():
        if name in GROUPS:
            group = parser.add_argument_group(GROUPS[name])
        public, field = public_name(name), ServeSettings.model_fields[name]
        if not has_http and (public in HTTP_ONLY or name == "wyoming_port"):
            continue
        help_text = f"{field.description}{_default(name, field.default)}"
        options = _argument(name, field.annotation)
        group.add_argument(f"--{public.replace('_', '-')}", help=help_text, **options)


def check_packages() -> None:
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise RequestError(
            f"the server needs {', '.join(missing)}: install it with {install_command('server')}"
        )


def _argument(name: str, annotation: Any) -> dict[str, Any]:
    """Return argparse's keywords for a setting of this type."""
    kinds = {annotation, *get_args(annotation)}
    metavar = {"metavar": METAVARS[name]} if name in METAVARS else {}
    if ... in kinds:
        return {"action": "append", **metavar}
    if bool in kinds:
        return {"action": argparse.BooleanOptionalAction}
    if int in kinds:
        return {"type": int, "metavar": "N"}
    return {"type": float, "metavar": "SECONDS"} if float in kinds else metavar


def _default(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        num_kib = value // 1024
        value = f"{num_kib} KiB" if num_kib % 1024 else f"{num_kib // 1024} MiB"
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or value == "":
        return ""  # the description says what happens without the flag
    return f"; default: {value:g} s" if isinstance(value, float) else f"; default: {value}"
