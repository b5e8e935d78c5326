"""A whole fine-tuning run: data, training, judging, and files.

Everything a run writes besides its output is in one folder: rejected recordings, the state to
resume from, the best adapter so far, samples and the report.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Protocol

import torch

from vivace.adapter import Adapter, AdapterInfo
from vivace.device.threads import use_threads
from vivace.errors import TrainingDataError
from vivace.finetune.encoder import recognised_languages
from vivace.finetune.files import write_file
from vivace.finetune.interrupts import Interrupts, deferred_interrupts
from vivace.finetune.output import make_adapter, today, write_merged
from vivace.finetune.plan import TrainingPlan, judged_examples, learning_rate
from vivace.finetune.report import write_report
from vivace.finetune.request import FinetuneRequest
from vivace.finetune.setup import Prepared, prepare
from vivace.finetune.speech_judge import SpeechFigures, SpeechJudge
from vivace.finetune.state import Judgement, RunState, check_saved, load_state
from vivace.finetune.trainer import Trainer
from vivace.hub import model_id

BEST, STATE, REPORT, CURRENT = (
    "best.safetensors", "state.safetensors", "report.html", "current.safetensors",
)  # fmt: skip


class Reporter(Protocol):
    """Shows the progress of a run."""

    def progress(self, stage: str, done: int, total: int) -> None: ...

    def step(self, epoch: int, loss: float, share: float, left_s: float) -> None: ...

    def epoch(self, judgement: Judgement, is_best: bool) -> None: ...

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class FinetuneResult:
    output: Path
    report: Path
    history: Sequence[Judgement]
    best_epoch: int
    data: dict[str, object]


class Run:
    """One run from its data to its output."""

    def __init__(self, request: FinetuneRequest, prepared: Prepared, reporter: Reporter) -> None:
        self._request, self._prepared, self._reporter = request, prepared, reporter
        self._options, self._folder = request.training, request.folder
        self._trainer = Trainer(prepared.model, prepared.trainables, request.training)
        self._plan = TrainingPlan.make(prepared.data.train, prepared.writer, request.training)
        self._held_out = judged_examples(prepared.data.held_out, prepared.writer)
        self._judge = _speech_judge(request, prepared)
        self._state = RunState(settings=prepared.settings)
        self._begun = self._saved = time.monotonic()

    def execute(self) -> FinetuneResult:
        """Train all epochs. An interrupt saves the state first."""
        if self._request.resume:
            self._state, tensors = load_state(self._folder / STATE, self._prepared.settings)
            self._trainer.load_state(tensors)
            if self._state.best_epoch:
                Adapter.load(self._folder / BEST)  # raises AdapterError now, not after the training
            self._reporter.note(f"resumed at epoch {self._state.epoch}, step {self._state.step}")
        else:
            self._check_unfinished()
        self._begun = time.monotonic() - self._state.seconds
        with deferred_interrupts() as interrupts:
            if not self._state.history:
                self._finish_epoch(Judgement(epoch=0, losses=[], total=0.0), SpeechFigures())
            while self._state.epoch < self._options.epochs and interrupts.number is None:
                self._train_epoch(interrupts)
            if interrupts.number is not None:
                self._save()
                self._reporter.note("interrupted; the same command with --resume continues")
        return self._write_output()

    def _check_unfinished(self) -> None:
        """Raise TrainingDataError instead of replacing the state of an unfinished run."""
        try:
            state, _ = load_state(self._folder / STATE, self._prepared.settings)
        except TrainingDataError:
            return  # there is none, or it is of another run
        if state.epoch < self._options.epochs:
            raise TrainingDataError(
                f"{self._folder} has an unfinished run; --resume continues it, or remove the folder"
            )

    def _train_epoch(self, interrupts: Interrupts) -> None:
        steps = self._plan.steps(self._state.epoch)
        for number in range(self._state.step, len(steps)):
            epoch = self._state.epoch
            progress = (epoch + number / len(steps)) / self._options.epochs
            batches = [[self._plan.example(epoch, one) for one in batch] for batch in steps[number]]
            means = self._trainer.step(batches, learning_rate(self._options, progress))
            self._state = dataclasses.replace(
                self._state,
                step=number + 1,
                num_steps=self._state.num_steps + 1,
                epoch_losses=[*self._state.epoch_losses, means.tolist()],
            )
            self._show(self._trainer.total(means), (epoch + (number + 1) / len(steps)))
            if interrupts.number is not None:
                return
            if time.monotonic() - self._saved > self._request.save_every_s:
                self._save()
        self._end_epoch(interrupts)

    def _end_epoch(self, interrupts: Interrupts) -> None:
        losses = self._state.epoch_losses
        means = [fmean(column) for column in zip(*losses, strict=True)]
        epoch = self._state.epoch + 1
        figures = self._judge_speech(epoch, interrupts)
        if interrupts.number is not None:
            return  # a resumed run has no steps left in this epoch and judges it again
        self._state = dataclasses.replace(self._state, epoch=epoch, step=0, epoch_losses=[])
        self._finish_epoch(
            Judgement(epoch=epoch, losses=[], total=0.0, train_losses=means), figures
        )

    def _judge_speech(self, epoch: int, interrupts: Interrupts) -> SpeechFigures:
        if self._judge is None:
            return SpeechFigures()
        self._reporter.note(f"epoch {epoch}: speaking held-out sentences")
        current = self._folder / CURRENT
        self._adapter().save(current)
        figures = self._judge.judge(current, epoch, lambda: interrupts.number is not None)
        current.unlink(missing_ok=True)
        return figures

    def _finish_epoch(self, judgement: Judgement, figures: SpeechFigures) -> None:
        means = self._trainer.evaluate(self._held_out)
        judgement = dataclasses.replace(
            judgement,
            losses=means.tolist(),
            total=self._trainer.total(means),
            seconds=time.monotonic() - self._begun,
            **dataclasses.asdict(figures),
        )
        is_best = judgement.epoch > 0 and judgement.total < self._state.best_total
        history = [*self._state.history, judgement]
        self._state = dataclasses.replace(self._state, history=history)
        if is_best:
            self._state = dataclasses.replace(
                self._state, best_epoch=judgement.epoch, best_total=judgement.total
            )
            self._adapter(judgement.total).save(self._folder / BEST)
        self._save()
        self._reporter.epoch(judgement, is_best)
        self._write_report()

    def _adapter(self, loss: float = 0.0) -> Adapter:
        info = dataclasses.replace(self._info(), steps=self._state.num_steps, loss=loss)
        return make_adapter(self._prepared.trainables, info)

    def _info(self) -> AdapterInfo:
        request, prepared = self._request, self._prepared
        return AdapterInfo(
            name=request.name or request.output.stem,
            base=model_id(prepared.checkpoint.folder),  # no path: adapters are shared
            base_digest=prepared.base_digest,
            rank=request.training.rank,
            scale=request.training.alpha / request.training.rank,
            speakers=prepared.speaker_ids,
            data_sha256=prepared.data.sha256,
            licence=request.licence,
            consent=request.consent,
            created=today(),
        )

    def _save(self) -> None:
        seconds = time.monotonic() - self._begun
        self._state = dataclasses.replace(self._state, seconds=seconds)
        self._state.save(self._folder / STATE, self._trainer.state())
        self._saved = time.monotonic()

    def _show(self, loss: float, done_epochs: float) -> None:
        share = done_epochs / self._options.epochs
        elapsed = time.monotonic() - self._begun
        left_s = elapsed / share * (1 - share) if share else 0.0
        self._reporter.step(self._state.epoch + 1, loss, share, left_s)

    def _write_report(self) -> None:
        write_report(
            self._folder / REPORT,
            title=self._title(),
            history=self._state.history,
            best_epoch=self._state.best_epoch,
            data=self._prepared.data,
            facts=self._prepared.facts(self._request),
        )

    def _title(self) -> str:
        request = self._request
        speakers = f": {request.name}" if request.name else ""
        return f"Fine-tuning of {request.model_name}{speakers}"

    def _write_output(self) -> FinetuneResult:
        request, best = self._request, self._folder / BEST
        if not self._state.best_epoch:
            raise TrainingDataError(
                "the held-out loss is not a finite number in any epoch; lower --learning-rate"
            )
        adapter = Adapter.load(best)
        if request.is_merged:
            write_merged(self._prepared.checkpoint, adapter, request.output)
        else:
            write_file(request.output, best.read_bytes())
        return FinetuneResult(
            output=request.output,
            report=self._folder / REPORT,
            history=self._state.history,
            best_epoch=self._state.best_epoch,
            data=self._prepared.data.describe(),
        )


def finetune(request: FinetuneRequest, reporter: Reporter) -> FinetuneResult:
    """Fine-tune a checkpoint. Raises TTSError; an interrupt saves the state first."""
    if request.resume:
        check_saved(request.folder / STATE)  # before the data is prepared, which may take hours
    with use_threads(request.threads or torch.get_num_threads()):
        prepared = prepare(request, reporter.progress)
        for warning in prepared.warnings:
            reporter.warn(warning)
        return Run(request, prepared, reporter).execute()


def _speech_judge(request: FinetuneRequest, prepared: Prepared) -> SpeechJudge | None:
    clips = list(prepared.data.held_out)[: request.samples]
    if not clips:
        return None
    return SpeechJudge(
        base=prepared.checkpoint.folder,
        clips=clips,
        folder=request.folder / "samples",
        device=str(prepared.model.device),
        dtype=prepared.model.dtype,
        recognise=prepared.recognise,
        languages=recognised_languages(prepared.model.config),
        vector=prepared.vector,
    )
