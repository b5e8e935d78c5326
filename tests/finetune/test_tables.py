"""Rows of metadata files: delimiters, quoting, line ends and damage."""

from __future__ import annotations

import json

import pytest

from vivace.finetune.tables import read_csv_rows, read_json_rows


def test_line_separator_in_json_does_not_end_a_line() -> None:
    values = {"audio": "a.wav", "text": "One\u2028two\x85three"}
    line = json.dumps(values, ensure_ascii=False)
    assert list(read_json_rows(f"{line}\n\n{line}\n")) == [(1, values), (3, values)]


def test_line_separator_in_ljspeech_does_not_end_a_row() -> None:
    [(_, found)] = read_csv_rows("a|One\u2028two.\n")
    assert found == {"audio": "a", "text": "One\u2028two."}


@pytest.mark.parametrize("delimiter", [",", "|", "\t", ";"])
@pytest.mark.parametrize("header", ["file_name{}text{}speaker", " File_Name{}TEXT{}Speaker "])
def test_header_names_the_columns_with_any_delimiter(delimiter: str, header: str) -> None:
    text = header.format(delimiter, delimiter) + f"\na.wav{delimiter}Hello.{delimiter}bob\n"
    assert list(read_csv_rows(text)) == [
        (2, {"file_name": "a.wav", "text": "Hello.", "speaker": "bob"})
    ]


def test_header_of_bars_keeps_quotation_marks() -> None:
    text = 'audio_file|text|speaker_name\na.wav|"Hi, he said.|bob\nb.wav|Bye.|bob\n'
    assert [values["text"] for _, values in read_csv_rows(text) if isinstance(values, dict)] == [
        '"Hi, he said.',
        "Bye.",
    ]


def test_ljspeech_row_with_an_empty_third_column_uses_the_second() -> None:
    [(_, found)] = read_csv_rows("a|Hello.| \n")
    assert found == {"audio": "a", "text": "Hello."}


def test_quoted_cell_of_two_lines_keeps_its_words_apart() -> None:
    text = 'file_name,text\na.wav,"He said ""hi"" to\nthe world"\nb.wav,Bye.\n'
    assert list(read_csv_rows(text)) == [
        (2, {"file_name": "a.wav", "text": 'He said "hi" to\nthe world'}),
        (4, {"file_name": "b.wav", "text": "Bye."}),
    ]


def test_open_quotation_mark_rejects_the_rest_of_the_table() -> None:
    text = 'file_name,text\na.wav,Hello.\nb.wav,"open\nc.wav,lost\n'
    [good, (number, reason)] = read_csv_rows(text)
    assert good == (2, {"file_name": "a.wav", "text": "Hello."})
    assert number == 3
    assert "quotation mark is not closed" in str(reason)


def test_quotation_mark_inside_a_cell_is_text() -> None:
    [(_, found)] = read_csv_rows('file_name,text\na.wav,A 5" disk\n')
    assert found == {"file_name": "a.wav", "text": 'A 5" disk'}


def test_cell_that_is_too_large_rejects_the_rest_of_the_table() -> None:
    text = 'file_name,text\na.wav,Hello.\nb.wav,"' + "word " * 40_000
    [good, (number, reason)] = read_csv_rows(text)
    assert good[0] == 2
    assert number == 3
    assert "cannot be read: field larger" in str(reason)


@pytest.mark.parametrize(
    ("header", "column"),
    [("file_name,duration", "text"), ("text\tspeaker", "audio"), ("audio|speaker", "text")],
)
def test_header_without_a_needed_column_is_rejected(header: str, column: str) -> None:
    [(number, reason)] = read_csv_rows(f"{header}\na.wav,2.0\n")
    assert number == 1
    assert str(reason).startswith(f"the header has no column {column} (or ")


@pytest.mark.parametrize("line", ["001|Text", "001|Choose a file, path", "001|One;text"])
def test_ljspeech_row_with_the_name_of_a_column_is_no_header(line: str) -> None:
    [(_, found)] = read_csv_rows(line)
    assert found == {"audio": "001", "text": line[4:]}


def test_json_array_has_a_row_for_each_object() -> None:
    rows = list(read_json_rows('[\n {"audio": "a.wav", "text": "Hello."},\n 5\n]\n'))
    assert rows == [(1, {"audio": "a.wav", "text": "Hello."}), (2, "not a JSON object")]


def test_empty_table_has_no_rows() -> None:
    assert list(read_csv_rows("")) == list(read_json_rows("\n \n")) == []
