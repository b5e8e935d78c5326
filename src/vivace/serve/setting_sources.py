"""Merges the sources of the server's settings: flags, `VIVACE_*` variables, a TOML file, defaults.

An earlier source overrides a later one. Errors name the source, the setting and the value.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vivace.errors import RequestError
from vivace.serve.settings import PREFIX, ServeSettings, public_name, setting_names, variable_of

OTHER_VARIABLES = {f"{PREFIX}{name}" for name in ("API_KEY", "CONFIG", "HOME", "COMMIT")}
# Kubernetes sets these variables in every pod of a namespace with a service named `vivace`.
SERVICE_LINK = re.compile(rf"{PREFIX}(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")


def resolve_settings(
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    config: Path | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> ServeSettings:
    """Merge flags (None: not given), `VIVACE_<SETTING>` variables, the TOML file and `defaults`.

    Flags and defaults are keyed by field name. Raises RequestError with the name of the source.
    """
    if config is None and (path := environment.get("VIVACE_CONFIG")):
        config = Path(path)
    values, origins = dict(defaults or {}), dict[str, str]()
    if config is not None:
        in_file = _read_toml(config)
        values |= in_file
        origins |= dict.fromkeys(in_file, f"{config}: ")
    for name in setting_names():
        if value := environment.get(variable_of(name)):
            values[name], origins[name] = value, f"{variable_of(name)}: "
    given = {name: value for name, value in flags.items() if value is not None}
    values |= given
    origins |= dict.fromkeys(given, "")
    keys_variable = values.get("api_key_env", "VIVACE_API_KEY")
    keys = environment.get(keys_variable, "").split(",")
    values["api_keys"] = tuple(key.strip() for key in keys if key.strip())
    if "api_key_env" in values and not values["api_keys"]:
        raise RequestError(f"the variable {keys_variable} holds no API key; set it first")
    try:
        return ServeSettings(**values)
    except ValidationError as error:
        raise _setting_error(error, origins) from None


def _setting_error(error: ValidationError, origins: Mapping[str, str]) -> RequestError:
    """Describe the first error with its source, its setting and the value given."""
    first = error.errors(include_url=False)[0]
    reason = str(first.get("ctx", {}).get("error", first["msg"]))
    if not first["loc"]:
        return RequestError(reason)
    name, value = str(first["loc"][0]), first["input"]
    origin = origins.get(name, "")
    if origin and name == "port" and "://" in str(value):
        reason += (
            "; Kubernetes sets this variable for a service named vivace: "
            "set enableServiceLinks: false in the pod, or give --port"
        )
    return RequestError(f"{origin}{public_name(name)} cannot be {value!r}: {reason}")


def unknown_variables(environment: Mapping[str, str], others: set[str]) -> list[str]:
    """Return a message for each `VIVACE_*` variable that is neither a setting nor in `others`."""
    known = {*map(variable_of, setting_names()), *OTHER_VARIABLES, *others}
    messages = []
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in known or SERVICE_LINK.fullmatch(name):
            continue
        near = difflib.get_close_matches(name, sorted(known), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        messages.append(f"{name} is not a setting and is ignored{hint}")
    return messages


def by_field_name(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Replace public names by field names; unknown names raise a RequestError with `source`."""
    fields = {public_name(name): name for name in setting_names()}
    if unknown := sorted(set(values) - set(fields)):
        hint = "; API keys are read from the variable that api_key_env names"
        raise RequestError(
            f"{source}: no setting named {unknown[0]!r}; try one of: {', '.join(sorted(fields))}"
            f"{hint if 'key' in unknown[0] else ''}"
        )
    return {fields[name]: value for name, value in values.items()}


def _read_toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise RequestError(f"{path}: not valid TOML: {error}") from error
    return by_field_name(content, str(path))
