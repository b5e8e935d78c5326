"""Values of the option `mark`."""

from __future__ import annotations

import pytest

from vivace.errors import RequestError
from vivace.mark.levels import MarkLevels


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("metadata", ("metadata",)),
        ("none", ("none",)),
        ("watermark", ("metadata", "watermark")),
        (" C2PA , watermark", ("metadata", "watermark", "c2pa")),
        ({"c2pa"}, ("metadata", "c2pa")),
        (["metadata", "metadata"], ("metadata",)),
    ],
)
def test_value_is_parsed(value: object, names: tuple[str, ...]) -> None:
    assert MarkLevels.parse(value).names == names
    assert MarkLevels.parse(str(MarkLevels.parse(value))) == MarkLevels.parse(value)


@pytest.mark.parametrize("value", ["", "on", "metadata,", "watermarks", [], [1], 1, None, b"none"])
def test_invalid_value_is_rejected_with_the_valid_ones(value: object) -> None:
    with pytest.raises(RequestError, match=r"mark must be metadata, watermark, c2pa, .*none"):
        MarkLevels.parse(value)


def test_none_excludes_other_levels() -> None:
    with pytest.raises(RequestError, match="none cannot be combined"):
        MarkLevels.parse("none,watermark")
