"""`vivace finetune`: trains a checkpoint on recordings and shows the progress."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivace.cli.finetune_options import given
from vivace.cli.progress import ProgressLine
from vivace.cli.request import model_name
from vivace.cli.streams import print_json, print_stderr, print_table
from vivace.errors import OutputExistsError, RequestError
from vivace.finetune.options import DataOptions, TrainOptions

if TYPE_CHECKING:
    from vivace.finetune.request import FinetuneRequest
    from vivace.finetune.run import FinetuneResult

LOG_EVERY_S = 30.0  # lines of progress where stderr is not a terminal


def finetune(arguments: argparse.Namespace) -> None:
    request = _read_request(arguments)
    from vivace.finetune.run import finetune as run_finetune

    with ProgressLine(is_quiet=arguments.quiet) as line:
        result = run_finetune(request, TerminalReporter(line, is_quiet=arguments.quiet))
    if arguments.json:
        print_json(_as_json(result), indent=2)
    else:
        print_table(_rows(result, request).items(), width=12)


def _read_request(arguments: argparse.Namespace) -> FinetuneRequest:
    """Raise RequestError for wrong options before PyTorch is imported."""
    recordings, training = given(arguments, DataOptions), given(arguments, TrainOptions)
    if arguments.output is None and arguments.name is None:
        raise RequestError("give --name, the name of the speaker, or -o, the file to write")
    output = Path(arguments.output or f"{arguments.name}.safetensors")
    if output.is_file() and not (arguments.resume or arguments.force):
        raise OutputExistsError(output, "--force")
    from vivace.finetune.request import FinetuneRequest

    return FinetuneRequest(
        data=Path(arguments.data),
        output=output,
        model=model_name(arguments),
        name=None if arguments.name is None else arguments.name.lower(),
        recordings=recordings,
        training=training,
        device=arguments.device,
        dtype=arguments.dtype,
        revision=arguments.revision,
        offline=arguments.offline,
        resume=arguments.resume,
        licence=arguments.licence or "",
        consent=arguments.consent or "",
        samples=arguments.samples,
        save_every_s=arguments.save_every,
        threads=arguments.threads,
    )


def _as_json(result: FinetuneResult) -> dict[str, Any]:
    return {
        "output": str(result.output),
        "report": str(result.report),
        "best_epoch": result.best_epoch,
        "data": result.data,
        "history": [dataclasses.asdict(one) for one in result.history],
    }


def _rows(result: FinetuneResult, request: FinetuneRequest) -> dict[str, str]:
    best = next(one for one in result.history if one.epoch == result.best_epoch)
    model = [] if request.model is None or request.is_merged else ["--model", request.model]
    option = "--model" if request.is_merged else "--adapter"
    command = shlex.join(["vivace", *model, option, str(result.output)])
    return {
        "best epoch": f"{result.best_epoch}, held-out loss {best.total:.4f} "
        f"(before: {result.history[0].total:.4f})",
        "output": str(result.output),
        "report": str(result.report),
        "speak": f'{command} "Hello."',
    }


class TerminalReporter:
    """Progress on a terminal as one line, elsewhere as a line every half minute."""

    def __init__(self, line: ProgressLine, *, is_quiet: bool) -> None:
        self._line, self._is_quiet = line, is_quiet
        self._last = self._begun = 0.0

    def progress(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if not done:
            self._begun = now
        text = f"{stage} {done:,} of {total:,}"
        if 0 < done < total:
            text += f"  {_clock((now - self._begun) / done * (total - done))} left"
        self._show(text, is_last=done == total)

    def step(self, epoch: int, loss: float, share: float, left_s: float) -> None:
        self._show(f"epoch {epoch} {share:4.0%}  loss {loss:.4f}  {_clock(left_s)} left")

    def epoch(self, judgement: object, is_best: bool) -> None:
        from vivace.finetune.state import Judgement

        assert isinstance(judgement, Judgement)
        parts = [f"epoch {judgement.epoch}: held-out loss {judgement.total:.4f}"]
        if judgement.word_errors is not None:
            parts.append(f"word errors {judgement.word_errors:.1%}")
        if judgement.likeness is not None:
            parts.append(f"likeness {judgement.likeness:.3f}")
        if judgement.runaways:
            parts.append(f"{judgement.runaways} runaways")
        self.note(", ".join(parts) + (" (best)" if is_best else ""))

    def note(self, text: str) -> None:
        if not self._is_quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        self._line.clear()
        print_stderr(text)

    def _show(self, text: str, *, is_last: bool = False) -> None:
        self._line.show(text)
        is_due = is_last or time.monotonic() - self._last > LOG_EVERY_S
        if is_due and not self._is_quiet and not sys.stderr.isatty():
            self._last = time.monotonic()
            print_stderr(text)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
