"""Pydantic models of client input, with errors in the server's shape."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError, core_schema

from vivace.serve.errors import RefusedError
from vivace.serve.settings import ServeSettings
from vivace.speech import Bounds, shown

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

UNKNOWN_TYPE = "unknown_type"


@dataclass(frozen=True, slots=True)
class Within:
    """Limits a number to a range, which its error and its JSON schema state."""

    bounds: Bounds

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        low, high = self.bounds.low, self.bounds.high
        limits: dict[str, Any] = {"minimum": low, "maximum": high}
        if self.bounds.zero is not None:
            gap = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": low}
            limits |= {"minimum": 0, "not": gap}
        return handler(schema) | limits

    def _check(self, number: float) -> float:
        if number not in self.bounds:
            raise PydanticCustomError("range", "must be {range}", {"range": str(self.bounds)})
        return number


class ClientInput(BaseModel):
    """Fields of a body, a form, a query or a message.

    Types are strict, null means absent, and unknown fields are ignored. A validator may raise a
    RefusedError, which becomes the response.
    """

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def read(cls, fields: Mapping[str, Any], settings: ServeSettings | None = None) -> Self:
        """Validate fields; `settings` are the context of validators that check limits.

        Raises a RefusedError that names the first wrong field and its value.
        """
        try:
            return cls.model_validate(dict(fields), context=settings)
        except ValidationError as error:
            raise refusal(error, cls) from None


def read_message(
    union: TypeAdapter[T], message: Mapping[str, Any], unknown_code: str = UNKNOWN_TYPE
) -> T:
    """Read one message of a union that `type` discriminates. Errors name the path of the field."""
    try:
        return union.validate_python(message)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["type"].startswith("union_tag"):
            raise refusal(error) from None
        known = first.get("ctx", {}).get("expected_tags")
        text = f"type {shown(message.get('type'))} is unknown; try one of: {known}"
        text = text if known else "type is missing"
        raise RefusedError(text, code=unknown_code, param="type") from None


def refusal(error: ValidationError, model: type[BaseModel] | None = None) -> RefusedError:
    """Describe the first error. Without a model, it is of a message: its path begins with the
    message's type."""
    first = error.errors(include_url=False)[0]
    cause, path = first.get("ctx", {}).get("error"), first["loc"]
    if isinstance(cause, RefusedError):
        return cause
    if model is None:
        param = ".".join(map(str, path[1:]))
        where = f"{param} of {path[0]}"
    else:
        param = where = _field_path(model, path)
    if first["type"] == "missing" and (model is None or len(path) == 1):
        return RefusedError(f"{where} is missing", param=param, code="missing_field")
    text = violated_rule(first)
    return RefusedError(text if text.startswith(param) else f"{where}: {text}", param=param)


def violated_rule(error: ErrorDetails) -> str:
    """The rule that a value violates, and the value: `must be a valid string, not 5`."""
    cause = error.get("ctx", {}).get("error")
    if cause is not None:
        return str(cause)
    rule = "must be an object" if error["type"] == "model_type" else error["msg"]
    rule = re.sub(r"\A[A-Z][a-z]+ should ", "must ", rule)  # `Input should be a valid string`
    return f"{rule[:1].lower()}{rule[1:]}, not {shown(error['input'])}"


def _field_path(model: type[BaseModel], path: Sequence[int | str]) -> str:
    """The name of a field, with the name of the object that it is in: `voice_settings.speed`.

    The keys of a mapping and the places of a list are the client's data and are left out.
    """
    name, rest = str(path[0]), path[1:]
    field = model.model_fields.get(name)
    inner = None if field is None else field.annotation
    if rest and isinstance(inner, type) and issubclass(inner, BaseModel):
        return f"{name}.{_field_path(inner, rest)}"
    return name
