"""Pydantic models of client input, with errors in the server's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from vivace.serve.errors import RefusedError
from vivace.speech import shown

if TYPE_CHECKING:
    from typing_extensions import Self

PREFIX = "Value error, "  # of messages that a validator raises


class ClientInput(BaseModel):
    """Fields of a body, a form or a message.

    Types are strict, null means absent, and unknown fields are ignored.
    """

    model_config = ConfigDict(
        strict=True, frozen=True, allow_inf_nan=False, extra="ignore", loc_by_alias=False
    )

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """Raises a RefusedError that names the first wrong field and its value."""
        try:
            return cls.model_validate({k: v for k, v in fields.items() if v is not None})
        except ValidationError as error:
            raise _refusal(error) from None


def _refusal(error: ValidationError) -> RefusedError:
    first = error.errors(include_url=False, include_context=False)[0]
    param, message = str(first["loc"][0]), first["msg"]
    if first["type"] == "missing" and len(first["loc"]) == 1:
        return RefusedError(f"{param} is missing", param=param, code="missing_field")
    if first["type"] == "value_error":
        message = message.removeprefix(PREFIX)
        text = message if message.startswith(param) else f"{param}: {message}"
        return RefusedError(text, param=param)
    text = f"{message[:1].lower()}{message[1:]}"
    return RefusedError(f"{param}: {text}, not {shown(first['input'])}", param=param)
