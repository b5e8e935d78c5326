"""Tests of decoding pages: the encoding is recognized from the bytes."""

from __future__ import annotations

import pytest

from vivace.books.decode import decode_page

TEXT = '<?xml version="1.0" encoding="{}"?><html><body><p>Größe, naïve, “quoted”</p></body></html>'


@pytest.mark.parametrize("declared", ["utf-8", "iso-8859-1", "utf-16", "us-ascii", "nonsense", ""])
@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"],
)
def test_unicode_page_is_decoded_with_any_declaration(declared: str, encoding: str) -> None:
    text = TEXT.format(declared)
    assert decode_page(text.encode(encoding)).lstrip("\ufeff") == text


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_page_with_few_ascii_letters_is_recognized(encoding: str) -> None:
    text = f"<p>{'吾輩は猫である。' * 200}</p>"
    assert decode_page(text.encode(encoding)) == text


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("windows-1251", "Привет, мир"),
        ("koi8-r", "Привет, мир"),
        ("shift_jis", "吾輩は猫である"),
        ("gb18030", "红楼梦"),
        ("iso-2022-jp", "吾輩は猫である"),
        ("iso-8859-1", "“Größe”"),  # decoded as windows-1252, as browsers do
    ],
)
def test_declared_encoding_is_used_if_bytes_are_not_unicode(encoding: str, words: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?><p>{words}</p>'
    used = "cp1252" if encoding == "iso-8859-1" else encoding
    assert decode_page(text.encode(used)) == text


def test_undeclared_page_with_accents_is_decoded_as_latin() -> None:
    text = "<p>The café on the corner was open, and so was the naïve reader.</p>"
    assert decode_page(text.encode("latin-1")) == text


@pytest.mark.parametrize("content", [b"\xff\xff", "Привет, мир".encode("cp1251"), b"<\0p\0>"])
def test_page_of_unknown_encoding_raises_unicode_decode_error(content: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        decode_page(content)


def test_characters_forbidden_in_xml_become_spaces() -> None:
    assert decode_page(b"<p>a\0b\x1fc\xef\xbf\xbf</p>") == "<p>a b c </p>"
