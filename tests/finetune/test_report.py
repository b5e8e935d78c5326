"""The HTML report and the reasons that it counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vivace.finetune.prepare import PreparedData, count_reasons
from vivace.finetune.report import write_report
from vivace.finetune.sources import Rejection
from vivace.finetune.state import Judgement

DATA = PreparedData(train=[], held_out=[], rejections=[], sha256="")


def judgement(epoch: int, loss: float) -> Judgement:
    losses = [loss] * 16
    return Judgement(epoch=epoch, losses=losses, total=loss, train_losses=losses if epoch else [])


def report(path: Path, history: list[Judgement], best_epoch: int) -> str:
    write_report(path, title="<me>", history=history, best_epoch=best_epoch, data=DATA, facts={})
    return path.read_text(encoding="utf-8")


def test_every_codebook_is_a_row_with_its_first_and_best_loss(tmp_path: Path) -> None:
    page = report(tmp_path / "a.html", [judgement(0, 3.0), judgement(1, 2.0)], 1)
    assert "<th>codebook</th><th>epoch 0</th><th>epoch 1</th>" in page
    assert page.count("<td>3.000</td><td>2.000</td>") == 16
    assert "&lt;me&gt;" in page
    page = report(tmp_path / "b.html", [judgement(0, 3.0)], 0)
    assert page.count("<td>3.000</td></tr>") == 16


def test_curves_show_a_single_point_and_leave_out_values_that_are_not_finite(
    tmp_path: Path,
) -> None:
    page = report(tmp_path / "a.html", [judgement(0, 3.0), judgement(1, 2.0)], 1)
    assert page.count("<circle") == 5  # two lines of two epochs, and one epoch of training
    page = report(tmp_path / "b.html", [judgement(0, 3.0), judgement(1, float("nan"))], 0)
    assert page.count("<circle") == 2
    assert not re.search(r'(points|c[xy])="[^"]*nan', page)
    assert "<circle" not in report(tmp_path / "c.html", [judgement(0, float("nan"))] * 2, 0)


@pytest.mark.parametrize(
    ("reasons", "counted"),
    [
        (("there is no file 'a.wav'", "there is no file 'b'"), "there is no file …"),
        (("a.txt cannot be read: it is not UTF-8", "b.txt cannot be read: x"), "… cannot be read"),
        (("the same recording as 1.wav", "the same recording as d/metadata.csv:7"),
         "the same recording as …"),
        (("0.10 s of codes; they are too short", "99 s of codes; they are"), "… s of codes"),
        (("the sample rate is 8,000 Hz; at least 16", "the sample rate is 8,000 Hz; x"),
         "the sample rate is 8,000 Hz"),
    ],
)  # fmt: skip
def test_reasons_are_counted_without_the_names_in_them(
    reasons: tuple[str, ...], counted: str
) -> None:
    rejections = [Rejection(f"{number}", reason) for number, reason in enumerate(reasons)]
    assert count_reasons(rejections) == {counted: 2}
