"""The values of the option `mark`. Imports no heavy package, so that `--help` is fast."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from vivace.errors import RequestError
from vivace.speech import shown

LEVELS = ("metadata", "watermark", "c2pa", "none")
DEFAULT_MARK = "metadata"
CHOICES = "metadata, watermark, c2pa, or watermark,c2pa; none turns marks off"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLevels:
    """Which marks speech gets. A watermark and a manifest include the metadata."""

    metadata: bool = False
    watermark: bool = False
    c2pa: bool = False

    @classmethod
    def parse(cls, value: object) -> MarkLevels:
        """Read `watermark`, `watermark,c2pa` or a collection of names. Raises RequestError."""
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, Collection) or isinstance(parts, (bytes, bytearray)):
            raise RequestError(f"mark must be {CHOICES}; not {shown(value)}")
        names = [part.strip().lower() if isinstance(part, str) else part for part in parts]
        if not names or any(name not in LEVELS for name in names):
            raise RequestError(f"mark must be {CHOICES}; not {shown(value)}")
        if "none" in names and set(names) != {"none"}:
            raise RequestError(f"mark: none cannot be combined with other values, {shown(value)}")
        return cls(
            metadata="none" not in names, watermark="watermark" in names, c2pa="c2pa" in names
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The levels that are on, in order; `none` if there are none."""
        return tuple(name for name in LEVELS if getattr(self, name, False)) or ("none",)

    def __str__(self) -> str:
        return ",".join(self.names)
