"""What is trained, how a run resumes, and that the merged weights are the trained ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.finetune.engine_logits import engine_losses
from tests.finetune.test_losses import random_codes
from tests.support.tiny import Tiny
from vivace.adapter import Adapter, AdapterInfo, free_speaker_ids, with_speakers
from vivace.checkpoint import Checkpoint
from vivace.errors import TrainingDataError
from vivace.finetune.examples import ExampleWriter, Transcript
from vivace.finetune.options import TARGETS, TrainOptions
from vivace.finetune.output import make_adapter, write_merged
from vivace.finetune.plan import TrainingPlan, learning_rate
from vivace.finetune.prepare import Clip
from vivace.finetune.trainable import Trainables, make_trainable
from vivace.finetune.trainer import Trainer
from vivace.model.talker import Qwen3TTS
from vivace.teacher_forcing import Example
from vivace.text.tokenizer import TextTokenizer

CPU = torch.device("cpu")
LoadTiny = Callable[[str], Tiny]
FAST = TrainOptions(learning_rate=3e-3, rank=4, rows_per_batch=128, rows_per_step=200)


class Bench:
    """A tiny checkpoint with a new speaker, ready to train."""

    def __init__(
        self, tiny: Tiny, options: TrainOptions = FAST, dtype: torch.dtype = torch.float32
    ):
        self.tiny, self.options = tiny, options
        self.config = tiny.checkpoint.config
        self.ids = free_speaker_ids(self.config, ["me"])
        self.tuned = with_speakers(self.config, self.ids)
        self.writer = ExampleWriter(self.tuned, tiny.tokenizer, self.ids)
        self.model: Qwen3TTS = tiny.checkpoint.load_plain_model(CPU, dtype)
        vector = torch.linspace(-1, 1, self.config.talker_config.hidden_size)
        self.trainables: Trainables = make_trainable(
            self.model, options, {"me": vector}, trains_vectors=self.model.speaker_encoder is None
        )
        self.trainer = Trainer(self.model, self.trainables, options)

    def clips(self, num: int = 6) -> list[Clip]:
        return [
            Clip(
                where=str(n),
                transcript=Transcript(text=f"This is sentence {n}.", speaker="me"),
                codes=random_codes(5 + n, n),
                seconds=1.0,
                sha256=str(n),
            )
            for n in range(num)
        ]

    def examples(self, num: int = 4) -> list[Example]:
        return [self.writer.write(clip.transcript, clip.codes) for clip in self.clips(num)]

    def adapter(self) -> Adapter:
        info = AdapterInfo(
            name="me",
            base="tiny",
            base_digest=self.tiny.checkpoint.digest(),
            rank=self.options.rank,
            scale=self.options.alpha / self.options.rank,
            speakers=self.ids,
        )
        return make_adapter(self.trainables, info)

    def loaded(self, dtype: torch.dtype = torch.float32) -> Qwen3TTS:
        """The model as `TTS.load` loads it with the adapter."""
        checkpoint = dataclasses.replace(self.tiny.checkpoint, config=self.tuned)
        model = checkpoint.load_plain_model(CPU, dtype)
        self.adapter().apply(model)
        return model


ALL = (  # with and without projections, with and without an encoder of speakers
    "base",
    "custom_voice_projected",
    pytest.param("base_projected", marks=pytest.mark.slow),
    pytest.param("custom_voice", marks=pytest.mark.slow),
)


@pytest.mark.parametrize("name", ALL)
def test_trained_loss_is_the_engine_loss_of_the_loaded_adapter(tiny: LoadTiny, name: str) -> None:
    from vivace.model.layers import fuse

    bench = Bench(tiny(name))
    examples = bench.examples(2)
    before = bench.trainer.evaluate(examples)
    for _ in range(3):
        bench.trainer.step([examples], 3e-3)
    after = bench.trainer.evaluate(examples)
    assert bench.trainer.total(after) < bench.trainer.total(before) - 0.05
    model = bench.loaded()
    fuse(model)
    codec = bench.tiny.codec
    for example, clip in zip(examples, bench.clips(), strict=False):
        prompt = bench.writer.prompt(clip.transcript)  # with the id of the speaker, as served
        expected = engine_losses(model, codec, prompt, clip.codes)
        assert bench.trainer.evaluate([example]).tolist() == pytest.approx(expected, abs=5e-4)


def test_bfloat16_weights_of_training_and_of_the_loaded_adapter_are_equal(tiny: LoadTiny) -> None:
    bench = Bench(tiny("base"), dtype=torch.bfloat16)
    for _ in range(2):
        bench.trainer.step([bench.examples()], 3e-3)
    trained = dict(bench.loaded(torch.bfloat16).named_parameters())
    for name in bench.trainables.pairs:
        module = bench.model.get_submodule(name.rpartition(".")[0])
        assert isinstance(module.weight, torch.Tensor)
        torch.testing.assert_close(trained[name].data, module.weight.data, rtol=0, atol=0)
    assert all(one.dtype == torch.float32 for one in bench.trainables.parameters().values())


@pytest.mark.parametrize("target", TARGETS)
def test_targets_train_only_their_parts(tiny: LoadTiny, target: str) -> None:
    options = dataclasses.replace(FAST, targets=(target,))
    bench = Bench(tiny("custom_voice_projected"), options)
    names = set(bench.trainables.parameters())
    part = {
        "attention": "talker.model.layers.0.self_attn.q_proj",
        "mlp": "talker.model.layers.2.mlp.down_proj",
        "predictor": "talker.code_predictor.small_to_mtp_projection",
        "text": "talker.text_projection.linear_fc1",
        "heads": "talker.code_predictor.lm_head.14",
    }
    assert f"lora.{part[target]}.weight.a" in names
    for other in set(part) - {target}:
        assert f"lora.{part[other]}.weight.a" not in names
    bench.trainer.step([bench.examples()], 1e-3)
    assert "speaker.me" in names


def test_speaker_vector_of_the_speaker_encoder_stays(tiny: LoadTiny) -> None:
    bench = Bench(tiny("base"))
    before = bench.trainables.vectors["me"].clone()
    bench.trainer.step([bench.examples()], 1e-2)
    assert torch.equal(bench.trainables.vectors["me"], before)
    trained = Bench(tiny("custom_voice"))
    trained.trainer.step([trained.examples()], 1e-2)
    assert not torch.equal(trained.trainables.vectors["me"].detach(), before)


@pytest.mark.parametrize(("embeddings", "num"), [("none", 0), ("codes", 16), ("all", 17)])
def test_embeddings_are_frozen_unless_asked(tiny: LoadTiny, embeddings: str, num: int) -> None:
    for full in (False, True):
        options = dataclasses.replace(FAST, embeddings=embeddings, full=full)  # type: ignore[arg-type]
        bench = Bench(tiny("custom_voice"), options)
        found = [name for name in bench.trainables.masters if "embedding" in name]
        assert len(found) == num


def test_full_training_changes_every_layer_and_norm(tiny: LoadTiny) -> None:
    bench = Bench(tiny("custom_voice"), dataclasses.replace(FAST, full=True))
    names = {name for name, _ in bench.tiny.model.named_parameters()}
    trained = set(bench.trainables.masters)
    assert all("embedding" in name for name in names - trained)
    bench.trainer.step([bench.examples()], 1e-3)
    before = dict(bench.tiny.checkpoint.load_plain_model(CPU, torch.float32).named_parameters())
    after = dict(bench.loaded().named_parameters())
    unchanged = [name for name in trained if torch.equal(before[name], after[name])]
    assert not unchanged


def test_recomputation_changes_no_gradient(tiny: LoadTiny) -> None:
    def train(recompute: bool) -> dict[str, torch.Tensor]:
        bench = Bench(tiny("base_projected"), dataclasses.replace(FAST, recompute=recompute))
        bench.trainer.step([bench.examples()], 1e-3)
        return bench.trainer.state()

    plain, recomputed = train(False), train(True)
    for name, tensor in plain.items():
        torch.testing.assert_close(recomputed[name], tensor, rtol=1e-4, atol=1e-6)


def test_step_of_several_batches_has_the_gradient_of_one_batch(tiny: LoadTiny) -> None:
    def train(*sizes: int) -> tuple[dict[str, torch.Tensor | None], torch.Tensor]:
        bench = Bench(tiny("custom_voice"), dataclasses.replace(FAST, clip=1e6))
        examples = iter(bench.examples(sum(sizes)))
        batches = [list(islice(examples, size)) for size in sizes]
        means = bench.trainer.step(batches, 1e-3)
        return {name: one.grad for name, one in bench.trainables.parameters().items()}, means

    (together, means), (apart, parts) = train(6), train(1, 5)
    torch.testing.assert_close(parts, means)
    for name, gradient in together.items():
        torch.testing.assert_close(apart[name], gradient, rtol=1e-3, atol=1e-6)


def test_resumed_training_gives_the_same_values(tiny: LoadTiny) -> None:
    options = dataclasses.replace(FAST, rows_per_step=60)

    def run(cut: int | None) -> dict[str, torch.Tensor]:
        bench = Bench(tiny("custom_voice"), options)
        plan = TrainingPlan.make(bench.clips(), bench.writer, bench.options)
        assert len(plan.steps(0)) > 1
        state = None
        for epoch in range(2):
            for number, step in enumerate(plan.steps(epoch)):
                if cut == epoch * 100 + number:
                    state = bench.trainer.state()
                    bench = Bench(tiny("custom_voice"), options)
                    bench.trainer.load_state(state)
                batches = [[plan.example(epoch, one) for one in batch] for batch in step]
                bench.trainer.step(batches, 1e-3 * (1 + number))
        assert cut is None or state is not None
        return bench.trainer.state()

    whole = run(None)
    for cut in (1, 100):
        resumed = run(cut)
        assert resumed.keys() == whole.keys()
        assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_state_of_another_run_is_refused(tiny: LoadTiny) -> None:
    bench = Bench(tiny("custom_voice"))
    state = bench.trainer.state()
    other = Bench(tiny("custom_voice"), dataclasses.replace(FAST, targets=("mlp",)))
    with pytest.raises(TrainingDataError, match="other trained parts"):
        other.trainer.load_state(state)
    wider = Bench(tiny("custom_voice"), dataclasses.replace(FAST, rank=8))
    with pytest.raises(TrainingDataError, match="another shape"):
        wider.trainer.load_state(state)


def test_plan_covers_every_recording_once_within_the_limits(tiny: LoadTiny) -> None:
    bench = Bench(tiny("custom_voice"))
    plan = TrainingPlan.make(bench.clips(40), bench.writer, bench.options)
    for epoch in range(3):
        steps = plan.steps(epoch)
        used = sorted(one for step in steps for batch in step for one in batch)
        assert used == list(range(40))
        for batch in (batch for step in steps for batch in step):
            rows = max(plan.lengths[one] for one in batch) * len(batch)
            assert rows <= bench.options.rows_per_batch or len(batch) == 1
        assert steps == plan.steps(epoch)
    assert plan.steps(0) != plan.steps(1)


def test_examples_mix_layouts_and_open_languages(tiny: LoadTiny) -> None:
    bench = Bench(tiny("custom_voice"))
    clips = [
        dataclasses.replace(
            clip, transcript=dataclasses.replace(clip.transcript, language="english")
        )
        for clip in bench.clips(60)
    ]
    plan = TrainingPlan.make(clips, bench.writer, bench.options)
    examples = [plan.example(0, one) for one in range(60)]
    num_streamed = sum(bool(one.prompt.trailing_ids) for one in examples)
    open_id = bench.config.talker_config.codec_nothink_id
    num_open = sum(open_id in one.prompt.codes[:, 0].tolist() for one in examples)
    assert 8 <= num_streamed <= 30
    assert 2 <= num_open <= 20


def test_learning_rate_rises_once_and_falls_to_a_tenth() -> None:
    options = TrainOptions(learning_rate=1.0, warmup=0.1)
    rates = [learning_rate(options, n / 100) for n in range(101)]
    assert max(rates) == pytest.approx(1.0, abs=1e-3)
    assert rates.index(max(rates)) == 10
    assert rates[-1] == pytest.approx(0.1)
    assert sorted(rates[10:], reverse=True) == rates[10:]
    assert rates[0] > 0


@pytest.mark.parametrize("name", ALL)
def test_merged_checkpoint_has_the_weights_of_the_adapter(
    tiny: LoadTiny, tmp_path: Path, name: str
) -> None:
    bench = Bench(tiny(name))
    bench.trainer.step([bench.examples()], 1e-2)
    write_merged(bench.tiny.checkpoint, bench.adapter(), tmp_path / "merged")
    merged = Checkpoint.open(tmp_path / "merged")
    assert merged.config.tts_model_type == "custom_voice"
    assert next(iter(merged.config.talker_config.spk_id)) == "me"
    found = dict(merged.load_plain_model(CPU, torch.bfloat16).named_parameters())
    expected = dict(bench.loaded(torch.bfloat16).named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert TextTokenizer.from_folder(merged.folder).encode("Hello") is not None
    assert np.isfinite(bench.trainer.evaluate(bench.examples()).numpy()).all()
