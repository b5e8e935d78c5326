"""The report of a run as one HTML file: curves, tables and generated samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from vivace.finetune.files import write_file
from vivace.finetune.prepare import PreparedData, count_reasons
from vivace.finetune.state import Judgement

WIDTH, HEIGHT, MARGIN = 640, 240, 44
MAX_REJECTIONS = 100  # listed in the report; rejected.csv has all
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:860px;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .7rem;text-align:right;
border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}
svg{background:#fafafa;border:1px solid #ddd}.best{background:#e8f5e9}
audio{width:260px;height:32px}code{overflow-wrap:anywhere}
"""
LINES = (("held-out, total", "#1565c0"), ("held-out, codebook 0", "#e65100"),
         ("training, codebook 0", "#9e9e9e"))  # fmt: skip


def write_report(
    path: Path,
    *,
    title: str,
    history: Sequence[Judgement],
    best_epoch: int,
    data: PreparedData,
    facts: Mapping[str, object],
) -> None:
    parts = [
        f"<h1>{escape(title)}</h1>",
        _facts(facts),
        "<h2>Losses</h2>",
        _curves(history),
        _epochs(history, best_epoch),
        _codebooks(history, best_epoch),
        _samples(history, data),
        _rejections(data),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    page = f'<!doctype html><html lang="en">{head}<body>{"".join(parts)}</body></html>\n'
    write_file(path, page)


def _facts(facts: Mapping[str, object]) -> str:
    return _table(
        [], [[escape(name), f"<code>{escape(str(value))}</code>"] for name, value in facts.items()]
    )


def _curves(history: Sequence[Judgement]) -> str:
    series = [
        [(one.epoch, one.total) for one in history],
        [(one.epoch, one.losses[0]) for one in history],
        [(one.epoch, one.train_losses[0]) for one in history if one.train_losses],
    ]
    series = [[point for point in line if math.isfinite(point[1])] for line in series]
    points = [point for line in series for point in line]
    if len(history) < 2 or not points:
        return "<p>The curves appear after the first epoch.</p>"
    low, high = min(y for _, y in points), max(y for _, y in points)
    last = max(x for x, _ in points)

    def place(x: float, y: float) -> str:
        across = MARGIN + x / max(1, last) * (WIDTH - 2 * MARGIN)
        down = HEIGHT - MARGIN - (y - low) / max(1e-9, high - low) * (HEIGHT - 2 * MARGIN)
        return f"{across:.1f},{down:.1f}"

    drawn = []
    for (name, colour), line, column in zip(LINES, series, range(len(LINES)), strict=True):
        places = [place(x, y) for x, y in line]
        path = " ".join(places)
        drawn.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>')
        for across, down in (one.split(",") for one in places):  # an only point has no line
            drawn.append(f'<circle cx="{across}" cy="{down}" r="3" fill="{colour}"/>')
        drawn.append(f'<text x="{MARGIN + 190 * column}" y="18" fill="{colour}">{name}</text>')
    for value in (low, high):
        drawn.append(f'<text x="2" y="{place(0, value).split(",")[1]}">{value:.2f}</text>')
    drawn.append(f'<text x="{WIDTH // 2}" y="{HEIGHT - 8}">epoch 0 to {last:g}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12">{"".join(drawn)}</svg>'


def _epochs(history: Sequence[Judgement], best_epoch: int) -> str:
    head = ["epoch", "held-out loss", "codebook 0", "training", "word errors", "likeness",
            "speaking rate", "runaways", "seconds"]  # fmt: skip
    rows = []
    for one in history:
        trained = one.train_losses[0] if one.train_losses else None
        name = f"{one.epoch} (best)" if one.epoch == best_epoch and one.epoch else str(one.epoch)
        rows.append(
            [name, f"{one.total:.4f}", f"{one.losses[0]:.4f}", _number(trained, ".4f"),
             _number(one.word_errors, ".1%"), _number(one.likeness, ".3f"),
             _number(one.speaking_rate, ".2f"), _number(one.runaways, "d"), f"{one.seconds:.0f}"]
        )  # fmt: skip
    return _table(head, rows)


def _codebooks(history: Sequence[Judgement], best_epoch: int) -> str:
    first = history[0]
    best = next((one for one in history if one.epoch == best_epoch), first)
    shown = [first] if best is first else [first, best]
    head = ["codebook", *(f"epoch {one.epoch}" for one in shown)]
    rows = [
        [str(number), *(f"{one.losses[number]:.3f}" for one in shown)]
        for number in range(len(first.losses))
    ]
    return f"<h2>Held-out loss of each codebook</h2>{_table(head, rows)}"


def _samples(history: Sequence[Judgement], data: PreparedData) -> str:
    rows = [
        [
            str(one.epoch),
            *(f'<audio controls src="{escape(path)}"></audio>' for path in one.samples),
        ]
        for one in history
        if one.samples
    ]
    if not rows:
        return ""
    texts = [escape(clip.transcript.text[:60]) for clip in data.held_out][: len(rows[-1]) - 1]
    return f"<h2>Samples of held-out sentences</h2>{_table(['epoch', *texts], rows)}"


def _rejections(data: PreparedData) -> str:
    if not data.rejections:
        return ""
    counts = [[escape(reason), str(n)] for reason, n in count_reasons(data.rejections).items()]
    listed = [[escape(one.where), escape(one.reason)] for one in data.rejections[:MAX_REJECTIONS]]
    return (
        f"<h2>Rejected recordings</h2>{_table(['reason', 'recordings'], counts)}"
        f"<details><summary>The first {len(listed)}</summary>"
        f"{_table(['recording', 'reason'], listed)}</details>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<tr>{top}</tr>' if head else ''}{body}</table>"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
