"""The released encoder learns the codes of the training encoder, frame by frame."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.project import ROOT
from vivace import TTS
from vivace.checkpoint import load_codec
from vivace.model.speaker_encoder import SpeakerEncoder

pytest.importorskip("tomllib", reason="the recipe reads TOML with Python 3.11's own library")
if TYPE_CHECKING:
    from recipes.mini_voice.codec_model import CodecTrainer
    from recipes.mini_voice.store import Store
    from recipes.mini_voice.train_encoder import Stage

FRAME = 1920
LINES = 6


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(ROOT)
    from recipes.mini_voice.settings import load_settings

    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"Sentence {number}.\n" for number in range(LINES)))
    sets = [f'data.lines="{lines}"', f'data.shards="{tmp_path}"', 'data.speakers=["heart"]']
    return load_settings(True, [*sets, "data.num_dev=2", "data.lines_per_shard=2"])


def share_equal(one: Tensor, other: Tensor) -> float:
    """The share of equal codes. Rounding decides between codes of almost the same distance."""
    assert one.shape == other.shape
    return float((one == other).float().mean())


def tones(frames: int, seed: int) -> np.ndarray:
    """Samples of tones and noise, int16."""
    rng, time = np.random.default_rng(seed), np.arange(frames * FRAME) / 24_000
    pitch = np.repeat(rng.uniform(100, 900, frames), FRAME)
    wave = 0.2 * np.sin(2 * np.pi * np.cumsum(pitch) / 24_000) + rng.normal(0, 0.02, len(time))
    return (wave * 32768).astype(np.int16)


@pytest.fixture
def store(settings: SimpleNamespace, tmp_path: Path) -> Store:
    from recipes.mini_voice.store import Store
    from recipes.mini_voice.synthesize import plan

    for index, read in enumerate(plan(settings.data)):
        numbers, frames = np.array([number for number, _ in read]), np.full(len(read), 30)
        audio = np.concatenate([tones(30, int(number)) for number in numbers])
        labels = np.zeros(2 * frames.sum(), np.uint8)
        np.savez(
            tmp_path / f"{index:05d}.npz", audio=audio, labels=labels, lines=numbers, frames=frames
        )
    store = Store(settings.data, settings.codec.num_quantizers)
    store.wait(complete=True, timeout=1)
    return store


@pytest.fixture
def trainer(settings: SimpleNamespace, tmp_path: Path) -> CodecTrainer:
    """An untrained codec in 16 bits, with codebooks in the range of its latents."""
    from recipes.mini_voice import train_codec

    torch.manual_seed(3)
    trainer = train_codec.build(settings).eval()
    with torch.no_grad():
        samples = torch.from_numpy(np.stack([tones(30, seed) for seed in range(20, 40)])) / 32768
        first, rest = trainer.branches(trainer.encoder(samples))
        trainer.books.initialise(0, first.flatten(0, 1), rounds=2)
        residual = rest.flatten(0, 1)
        for book in range(1, len(trainer.books.usage)):
            trainer.books.initialise(book, residual, rounds=2)
            residual = residual - trainer.books.quantise(book, residual, learn=False)[1]
    train_codec.save(trainer, tmp_path / "codec")
    train_codec.restore(trainer, tmp_path / "codec")
    return trainer


@pytest.fixture
def stage(settings: SimpleNamespace, store: Store, trainer: CodecTrainer) -> Stage:
    from recipes.mini_voice import released_encoder, train_encoder

    torch.manual_seed(4)
    encoder = released_encoder.build(settings, trainer)
    stage = train_encoder.Stage(settings, store, trainer, encoder)
    stage.measure_errors()
    return stage


def test_vector_depends_on_samples_up_to_end_of_its_frame(stage: Stage) -> None:
    samples = torch.from_numpy(tones(9, 5))[None] / 32768
    with torch.no_grad():
        before = stage.encoder.latents(samples)
        for frame in (3, 8):
            # Its first and its last samples reach the frame, and none reaches an earlier frame.
            for begin in (frame * FRAME, (frame + 1) * FRAME - 20):
                changed = samples.clone()
                changed[:, begin : begin + 20] += 0.3
                moved = (stage.encoder.latents(changed) - before).abs().amax((0, 1)) > 1e-5
                assert moved.tolist()[: frame + 1] == [False] * frame + [True]


def test_target_of_crop_equals_codes_of_whole_recording(
    stage: Stage, trainer: CodecTrainer, settings: SimpleNamespace
) -> None:
    config = settings.train_encoder
    whole = torch.from_numpy(tones(60, 6))[None] / 32768
    with torch.no_grad():
        codes = trainer.encode(whole)[0]
    # The fields of vision of the smoke encoder are shorter than context and lookahead.
    begin, size = 20, config.crop_frames
    for start, judged in ((0, 0), (begin, config.context_frames)):
        seen = whole[:, start * FRAME : (start + size + config.lookahead_frames) * FRAME]
        found = stage.target(seen).codes[0]
        assert found.shape == (size, settings.codec.num_quantizers)
        assert share_equal(found[judged:], codes[start + judged : start + size]) > 0.98
    assert stage.weights[0].min() > 0  # begins with an utterance
    assert (stage.weights[1] > 0).tolist() == [i >= config.context_frames for i in range(size)]
    assert float(stage.weights.sum()) == pytest.approx(1)


def test_encoder_learns_vector_of_each_frame_after_its_delay(
    stage: Stage, trainer: CodecTrainer, settings: SimpleNamespace
) -> None:
    samples, size = stage.crop(), settings.train_encoder.crop_frames
    stage.crop = lambda: samples  # type: ignore[method-assign]
    losses = []
    for delay in (stage.delay, stage.delay - 1):

        def late(heard: Tensor, delay: int = delay) -> Tensor:
            assert heard.shape[1] == (size + stage.delay) * FRAME
            vectors = trainer.encoder(samples)[..., : size + stage.delay - delay]
            return nn.functional.pad(vectors, (delay, 0)).detach().requires_grad_()

        stage.encoder.latents = late  # type: ignore[method-assign, assignment]
        losses.append(float(stage.step()["latent"]))
    assert losses[0] == pytest.approx(0, abs=1e-9)
    assert losses[1] > 0.1


def test_delay_beyond_lookahead_is_refused(
    settings: SimpleNamespace, store: Store, trainer: CodecTrainer
) -> None:
    from recipes.mini_voice import released_encoder, train_encoder

    settings.codec_encoder.delay = settings.train_encoder.lookahead_frames + 1
    encoder = released_encoder.build(settings, trainer)
    with pytest.raises(SystemExit, match=r"codec_encoder\.delay"):
        train_encoder.Stage(settings, store, trainer, encoder)


def test_losses_of_exact_vectors_are_zero_and_fall_in_training(stage: Stage) -> None:
    samples = stage.crop()
    target = stage.target(samples)
    assert float(stage.latent_loss(target.first, target.rest, target)) == 0
    nearest = [
        (x[..., None, :] - table).square().sum(-1).argmin(-1)
        for x, table in zip(book_inputs_of(stage, samples), stage.tables, strict=True)
    ]
    assert share_equal(torch.stack(nearest, -1), target.codes) > 0.98
    stage.crop = lambda: samples  # type: ignore[method-assign]
    outputs = []
    for _ in range(8):
        stage.reset()
        outputs.append({name: float(value) for name, value in stage.step().items()})
    assert outputs[-1]["latent"] < 0.9 * outputs[0]["latent"]
    assert outputs[-1]["code"] < outputs[0]["code"]
    first, rest = target.first.requires_grad_(), target.rest.requires_grad_()
    stage.mel_loss(first, rest, samples[:, : first.shape[1] * FRAME]).backward()
    for branch in (first, rest):  # the gradient passes the codebooks
        assert branch.grad is not None
        assert branch.grad.abs().sum() > 0


def book_inputs_of(stage: Stage, samples: Tensor) -> list[Tensor]:
    from recipes.mini_voice.train_encoder import book_inputs

    target = stage.target(samples)
    return book_inputs(target.first, target.rest, target.codes, stage.tables)


def test_quantizer_is_not_trained(stage: Stage) -> None:
    before = {name: t.clone() for name, t in stage.encoder.state_dict().items()}
    decoder = {name: t.clone() for name, t in stage.trainer.state_dict().items()}
    stage.step()
    after = stage.encoder.state_dict()
    changed = {name for name, tensor in before.items() if not tensor.equal(after[name])}
    assert changed == {name for name in before if not name.startswith("quantizer.")}
    assert all(tensor.equal(stage.trainer.state_dict()[name]) for name, tensor in decoder.items())


class ExactLatents(nn.Module):
    """Stands for the layers before the quantizer and gives the training encoder's vectors."""

    def __init__(self, trainer: CodecTrainer, delay: int) -> None:
        super().__init__()
        self.trainer, self.delay = trainer, delay

    def forward(self, samples: Tensor) -> Tensor:
        assert samples.shape[-1] % FRAME == 0
        vectors = self.trainer.encoder(samples[:, 0, : -self.delay * FRAME])
        return nn.functional.pad(vectors, (self.delay, 0))


@pytest.mark.parametrize("speaker", [0, 1])
def test_exported_quantizer_gives_codes_of_training_encoder(
    settings: SimpleNamespace, trainer: CodecTrainer, tmp_path: Path, speaker: int
) -> None:
    """In the divided last codebook, each speaker has an offset and codes of its own."""
    from recipes.mini_voice import export, released_encoder, talker_files, train_codec
    from recipes.mini_voice.common import save_half
    from vivace.text.tokenizer import TextTokenizer

    trainer.speaker, books, folder = speaker, trainer.books, tmp_path / "codec"
    books.owner.copy_(torch.arange(len(books.owner)) % 2)
    books.marks[1] = 0.25
    train_codec.save(trainer, folder)
    encoder = released_encoder.build(settings, trainer)
    save_half(folder / export.CODEC_ENCODER, encoder.state_dict())
    tokenizer = TextTokenizer.from_folder(Path(settings.tokenizer.folder))
    talker_files.save(talker_files.build(settings, tokenizer), folder)
    export.export(settings, folder, folder, tmp_path / "voice")
    codec = load_codec(tmp_path / "voice" / "speech_tokenizer", torch.device("cpu"))
    assert codec.config.encoder_valid_num_quantizers == settings.codec.num_quantizers
    assert codec.config.encoder_delay == settings.codec_encoder.delay == 6
    samples = torch.from_numpy(tones(20, 8)) / 32768
    samples = samples[: 20 * FRAME - 700]
    with torch.no_grad():
        codes = codec.encode(samples)
        assert codes.shape == (20, settings.codec.num_quantizers)
        exact = ExactLatents(trainer, settings.codec_encoder.delay)
        codec.encoder.encoder, codec.encoder.encoder_transformer = exact, nn.Identity()  # type: ignore[assignment]
        codec.encoder.downsample = nn.Identity()  # type: ignore[assignment]
        expected = trainer.encode(nn.functional.pad(samples[None], (0, 700)))[0]
        assert share_equal(codec.encode(samples), expected) > 0.98
    assert set((expected[:, -1] % 2).tolist()) == {speaker}


def test_exported_voice_clones_in_context_and_is_imported_again(
    settings: SimpleNamespace, trainer: CodecTrainer, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    from recipes.mini_voice import export, import_asset, released_encoder, talker_files
    from recipes.mini_voice.common import save_half
    from recipes.mini_voice.settings import speaker_encoder_config
    from vivace.text.tokenizer import TextTokenizer

    folder, voice, again = tmp_path / "codec", tmp_path / "voice", tmp_path / "again"
    encoder = released_encoder.build(settings, trainer)
    save_half(folder / export.CODEC_ENCODER, encoder.state_dict())
    tokenizer = TextTokenizer.from_folder(Path(settings.tokenizer.folder))
    talker_files.save(talker_files.build(settings, tokenizer), folder)
    speakers = SpeakerEncoder(speaker_encoder_config(settings))
    save_half(folder / "speaker_encoder.safetensors", speakers.state_dict())
    export.export(settings, folder, folder, voice, speakers_from=folder)
    recording = (tones(25, 9) / 32768).astype(np.float32)
    with TTS.load(voice, device="cpu") as tts:
        cloned = tts.clone((recording, 24_000), "These are the words.")
        assert len(tts.speak("Yes.", voice=cloned, seed=1, max_frames=2).codes) == 2
    import_asset.import_asset(voice, again)
    written, imported = (load_file(path / export.CODEC_ENCODER) for path in (folder, again))
    assert written.keys() == imported.keys()
    assert all(imported[name].equal(tensor) for name, tensor in written.items())


def test_stage_writes_encoder_and_continues_from_it(
    settings: SimpleNamespace, store: Store, trainer: CodecTrainer, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    from recipes.mini_voice import export, train_encoder
    from recipes.mini_voice.common import Log

    out, codec = tmp_path / "out", tmp_path / "codec"
    log = Log(out / "encoder.jsonl")
    train_encoder.run(settings, store, log, out, resume=codec, seconds=0.3)
    written = load_file(out / export.CODEC_ENCODER)
    assert {tensor.dtype for tensor in written.values()} == {torch.float16}
    train_encoder.run(settings, store, log, out, resume=codec, seconds=0)
    again = load_file(out / export.CODEC_ENCODER)
    assert all(again[name].equal(tensor) for name, tensor in written.items())
    assert '"agreement_long"' in (out / "encoder.jsonl").read_text()
    settings.codec.num_quantizers += 1
    with pytest.raises(SystemExit, match="another number of codebooks"):
        train_encoder.run(settings, store, log, out, resume=codec, seconds=0)
