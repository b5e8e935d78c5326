"""`adapt_codec` writes a checkpoint that loads and codes that `vivace finetune` reads."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from recipes.mini_voice import warp
from recipes.mini_voice.adapt_codec import build, encode, take_share
from recipes.mini_voice.adapt_data import Speech, join_speech, read_recordings
from recipes.mini_voice.adapt_prior import Prior, choose_codes
from recipes.mini_voice.adapt_stages import Learner, Length, train
from recipes.mini_voice.common import Log
from recipes.mini_voice.mels import MelSpectrogram, TimbreLoss, change_timbre
from recipes.mini_voice.settings import load_settings
from recipes.mini_voice.stretch import stretch
from tests.finetune.recordings import write_ljspeech
from tests.support import fork_server
from tests.support.project import ROOT
from vivace import TTS
from vivace.checkpoint import EMBEDDED
from vivace.finetune.sources import Defaults, Entry, read_rows

RUN = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("recipes.mini_voice.adapt_codec", run_name="__main__")
"""
SIZES = {
    "num_other_lines": 2, "num_replayed": 1, "encoder_steps": 1, "batch": 2, "crop_frames": 8,
    "decoder_steps": 1, "decoder_batch": 2, "decoder_crop_frames": 12, "decoder_wave_frames": 4,
}  # fmt: skip


def test_stage_writes_a_decoder_and_codes_of_every_recording(tmp_path: Path) -> None:
    data = write_ljspeech(tmp_path / "data", 2, seconds=1.0)
    out = tmp_path / "base"
    sizes = [part for key, size in SIZES.items() for part in ("--set", f"adapt_codec.{key}={size}")]
    done = fork_server.run(RUN, str(ROOT), "--data", str(data), "--out", str(out), *sizes)
    assert done.returncode == 0, done.stderr
    rows = read_rows(out / "data.jsonl", Defaults("me", "english"))
    codes = [row.codes for row in rows if isinstance(row, Entry) and row.codes is not None]
    assert [one.shape for one in codes[:2]] == [(13, 6), (14, 6)]
    assert len(codes) == 3  # and one sentence of the preset
    assert all(one.min() >= 0 and one.max() < 512 for one in codes)

    from vivace.checkpoint import load_codec

    codec, shipped = (load_codec(folder, torch.device("cpu")) for folder in (out, EMBEDDED))
    with torch.inference_mode():
        made, expected = (one.decode(torch.from_numpy(codes[0])) for one in (codec, shipped))
    assert not torch.equal(made, expected)  # one step at a low learning rate
    np.testing.assert_allclose(made.numpy(), expected.numpy(), atol=0.05)
    config = json.loads((out / "config.json").read_text())
    assert list(config["talker_config"]["spk_id"]) == ["michael"]


def test_missing_recordings_are_reported_without_a_traceback(tmp_path: Path) -> None:
    data = tmp_path / "missing"
    done = fork_server.run(RUN, str(ROOT), "--data", str(data), "--out", str(tmp_path / "base"))
    assert done.returncode == 1
    assert done.stderr.strip().endswith(f"--data: {data}: there is no such folder or file")
    assert "Traceback" not in done.stderr


def test_recordings_of_any_format_are_read_and_bad_ones_rejected(tmp_path: Path) -> None:
    time = np.arange(44_100) / 44_100
    tone = 0.3 * np.sin(2 * np.pi * 300 * time) * (1 + np.sin(2 * np.pi * 5 * time))
    for name, samples in (("a", np.stack((tone, tone), 1)), ("b", 0 * tone)):
        soundfile.write(tmp_path / f"{name}.wav", samples, 44_100)
        (tmp_path / f"{name}.txt").write_text("A tone.")
    texts, audios, rejections = read_recordings(tmp_path)
    assert texts == ["A tone."]
    assert audios[0].shape == (13 * 1920,)  # one second at 24 kHz, in whole frames
    assert [(Path(one.where).name, "silent" in one.reason) for one in rejections] == [
        ("b.wav", True)
    ]


def test_changed_timbre_scales_frequencies_and_keeps_times() -> None:
    torch.manual_seed(1)
    mel = MelSpectrogram(1024, 240, 100)
    time = torch.arange(24_000) / 24_000
    tones = [torch.sin(2 * torch.pi * hz * time) * (time > 0.5) for hz in (1000.0, 1150.0, 870.0)]
    mels = mel(torch.stack(tones))  # [3, mels, columns]
    peaks = mels[..., -20:].mean(-1).argmax(1)
    made = change_timbre(mels[:1].expand(40, -1, -1), 0.15, 0.0)
    found = made[..., -20:].mean(-1).argmax(1)
    assert peaks[2] - 1 <= found.min() < peaks[0] < found.max() <= peaks[1] + 1
    assert made[..., :40].max() < made[..., -20:].max() - 3  # silence stays where it was
    torch.testing.assert_close(change_timbre(mels, 0.0, 0.0), mels, rtol=0, atol=0.01)
    levels = change_timbre(mels, 0.0, 0.5) - mels
    torch.testing.assert_close(levels, levels[..., :1].expand_as(levels), rtol=0, atol=0.01)
    assert 0.1 < levels.std() < 1.5


def test_align_finds_the_columns_of_stretched_mels() -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = torch.randn(100, 12, generator=generator)  # twelve sounds
    own = shapes.repeat_interleave(12, 1)
    longer = shapes.repeat_interleave(torch.tensor([8, 20] * 6), 1) + 1.0  # another level
    (path,) = warp.align([longer], [own])
    sounds = torch.arange(12).repeat_interleave(torch.tensor([8, 20] * 6))
    assert path.diff().min() >= 0
    assert (sounds[path] == torch.arange(12).repeat_interleave(12)).float().mean() > 0.9


def _columns(lengths: list[int], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(100, length, generator=generator) for length in lengths]


def test_align_gives_each_pair_the_path_that_it_has_alone() -> None:
    sources, targets = _columns([80, 131, 60], 1), _columns([70, 120, 90], 2)
    paths = warp.align(sources, targets)
    assert [len(path) for path in paths] == [70, 120, 90]
    features = list(zip(warp._features(sources), warp._features(targets), strict=True))
    for path, source, target, pair in zip(paths, sources, targets, features, strict=True):
        (alone,) = warp.warp([pair])
        torch.testing.assert_close(path, alone)
        assert len(path) == target.shape[1]
        assert path.max() < source.shape[1]


def test_changes_of_level_align_the_beginning_of_a_sound() -> None:
    mels = torch.full((100, 60), -6.0)
    mels[:, 30:] = torch.linspace(-2, -4, 30)
    later = torch.cat((mels[:, :10], mels), 1)  # 100 ms of silence more
    (path,) = warp.align([later], [mels])
    assert abs(int(path[30]) - 40) <= 1


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.4])
def test_stretch_keeps_the_pitch_and_follows_the_path(factor: float) -> None:
    time = torch.arange(48_000) / 24_000
    hz = torch.where(time < 1, 200.0, 320.0)
    tones = torch.sin(2 * torch.pi * (hz * time))
    path = (torch.arange(round(200 * factor)) / factor).long()
    made = stretch(tones, path)
    assert made.shape == (240 * len(path),)
    for place, expected in ((0.25, 200), (0.75, 320)):
        start = int(place * len(made)) - 4800
        spectrum = torch.fft.rfft(made[start : start + 9600] * torch.hann_window(9600)).abs()
        assert abs(int(spectrum.argmax()) * 2.5 - expected) < 5


def test_stretch_along_its_own_columns_changes_nothing() -> None:
    noise = torch.randn(24_000, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(stretch(noise, torch.arange(100)), noise)


def test_timbre_loss_follows_slow_differences_and_keeps_short_sounds() -> None:
    torch.manual_seed(1)
    loss, preset = TimbreLoss(0.04), 0.1 * torch.randn(1, 24_000)
    louder, dropped = 2 * preset, preset.clone()
    dropped[:, 12_000:12_120] = 0  # 5 ms
    assert float(loss(preset, preset, preset)) == 0
    assert float(loss(louder, preset, louder)) < 0.03 < 0.5 < float(loss(preset, preset, louder))
    assert float(loss(preset, preset, dropped)) < 0.8 * float(loss(dropped, preset, dropped))


def test_stage_ends_after_its_steps_or_its_time() -> None:
    assert Length(10).progress(5, 1e6) == 0.5
    assert Length(10, seconds=100.0).progress(1, 80.0) == 0.8
    assert Length(0).progress(0, 0.0) == 1.0


def test_training_keeps_the_mean_of_the_last_weights(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    config = SimpleNamespace(
        average_from=0.5, warmup_steps=1, final_lr=1.0, log_every=9, clip=1e9, weight_decay=0.0
    )
    seen: list[float] = []

    def losses() -> tuple[Tensor, dict[str, Tensor]]:
        seen.append(float(weight.detach()))
        return -weight.sum(), {}

    learner = Learner([weight], 1.0, config)
    rising = SimpleNamespace(config=config, learner=learner, trained=[], losses=losses)
    train(rising, "rising", Length(8), Log(tmp_path / "log"))
    after = [*seen[1:], seen[-1] + 1.0]  # weights after each step; AdamW moves by the rate
    assert float(weight.detach()) == pytest.approx(sum(after[4:]) / 4)


TEXTS = ["The little boat came back to the harbour.", "Nobody had seen the letter."]


@pytest.fixture(scope="module")
def preset() -> Speech:
    with TTS.load(device="cpu") as tts:
        speech = tts.speak(TEXTS, voice="michael", seed=1, trim=False)
    return join_speech(
        [
            (text, torch.from_numpy(one.samples), torch.from_numpy(one.codes))
            for text, one in zip(TEXTS, speech, strict=True)
        ]
    )


@pytest.fixture(scope="module")
def prior() -> Prior:
    return Prior(EMBEDDED, "michael")


def _mean_log_probability(prior: Prior, speech: Speech) -> float:
    found = prior.log_probabilities(speech)
    return float(found.gather(2, speech.codes.T[..., None])[:2].mean())


def test_prior_expects_the_codes_of_its_own_text(prior: Prior, preset: Speech) -> None:
    swapped = Speech(TEXTS[::-1], preset.audio, preset.codes, preset.num_frames)
    assert _mean_log_probability(prior, preset) > -2
    assert _mean_log_probability(prior, swapped) < -4


def test_prior_leaves_out_texts_with_pauses(prior: Prior, preset: Speech) -> None:
    texts = ["One. [pause 1s] Two.", TEXTS[1]]
    found = prior.log_probabilities(Speech(texts, preset.audio, preset.codes, preset.num_frames))
    first = preset.num_frames[0]
    assert not found[:, :first].any()
    assert found[:, first:].all()


def test_chosen_codes_follow_the_prior_by_its_weight(prior: Prior, preset: Speech) -> None:
    torch.manual_seed(1)
    trainer = build(load_settings())
    take_share(trainer, preset)
    speech = encode(trainer, TEXTS, preset.split())
    unchanged, chosen = (choose_codes(trainer, prior, speech, 20.0, one) for one in (0.0, 50.0))
    torch.testing.assert_close(unchanged.codes, speech.codes)
    assert _mean_log_probability(prior, chosen) > _mean_log_probability(prior, speech) + 1
    owner = trainer.books.owner[chosen.codes[:, -1]]
    assert (owner == trainer.speaker).all()  # the codes of the speaker's part of the last codebook
