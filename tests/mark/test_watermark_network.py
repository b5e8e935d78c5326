"""Levels, the arithmetic of the networks, and their weights; then both with the extra `mark`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from vivace import TTS
from vivace.audio.resample import resample
from vivace.audio.wav import Samples
from vivace.errors import CheckpointError, RequestError
from vivace.mark import watermark_network
from vivace.mark.watermark import Watermark
from vivace.mark.watermark_network import (
    NUM_BINS,
    PACKAGE,
    RANGE_DB,
    WEIGHTS,
    WatermarkNetwork,
    find_weights,
    to_levels,
)

WIDTH = 8


def tone(rate: int, seconds: float = 1.0, amplitude: float = 0.5) -> Samples:
    turns = 2 * np.pi * 1_000 * np.arange(round(rate * seconds)) / rate
    return (amplitude * np.sin(turns)).astype(np.float32)


def make_weights(scale: float = 0.1) -> dict[str, Tensor]:
    """Small networks with random weights, in the layout of Perth."""
    generator = torch.Generator().manual_seed(3)
    weights = {}
    outputs = {"encoder.layers": NUM_BINS}
    outputs |= {f"decoder.{name}_layers": 2 for name in ("slow", "normal", "fast")}
    for name, num_outputs in outputs.items():
        shapes = [(WIDTH, NUM_BINS, 1), *[(WIDTH, WIDTH, 7)] * 5, (num_outputs, WIDTH, 1)]
        for number, shape in enumerate(shapes):
            prefix = f"{name}.{number}.conv"
            weights[f"{prefix}.weight"] = torch.randn(shape, generator=generator) * scale
            weights[f"{prefix}.bias"] = torch.randn(shape[0], generator=generator) * scale
    return weights


def mean_weights() -> dict[str, Tensor]:
    """The score of a frame is the mean of its levels."""
    weights = {name: torch.zeros_like(value) for name, value in make_weights().items()}
    for name in ("slow", "normal", "fast"):
        weights[f"decoder.{name}_layers.0.conv.weight"][0] = 1 / NUM_BINS
        for number in range(1, 6):
            weights[f"decoder.{name}_layers.{number}.conv.weight"][0, 0, 3] = 1
        weights[f"decoder.{name}_layers.6.conv.weight"][1, 0] = 1
    return weights


# --- Levels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 32_000, 44_100, 48_000])
def test_levels_do_not_depend_on_the_sample_rate(rate: int) -> None:
    expected, found = to_levels(tone(24_000), 24_000), to_levels(tone(rate), rate)
    middle = slice(40, 60)  # frames without an edge
    assert expected.shape[0] == found.shape[0] == NUM_BINS
    assert (found[63:66, middle] - expected[63:66, middle]).abs().max() < 0.2 / RANGE_DB
    assert torch.equal(found[64, middle], found[:, middle].max(0).values)


def test_levels_have_the_scale_of_perth() -> None:
    full_scale = to_levels(tone(32_000, amplitude=1.0), 32_000)[64, 50]
    # A sine fills half of the sum of a Hann window of 2,048 samples: 512.
    assert float(full_scale) == pytest.approx((20 * np.log10(512) + 180) / 195, abs=1e-4)
    assert not to_levels(np.zeros(1_000, np.float32), 24_000).any()


@pytest.mark.parametrize("num_samples", [1, 10, 240, 700])
def test_levels_of_short_audio_are_finite(num_samples: int) -> None:
    levels = to_levels(tone(24_000)[:num_samples], 24_000)
    assert levels.isfinite().all()
    assert levels.shape[1] == 1 + num_samples // 240


# --- Networks ---------------------------------------------------------------------------------


def test_gains_do_not_depend_on_the_ends_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    network = WatermarkNetwork(make_weights())
    gains = network.gains_db()
    monkeypatch.setattr(watermark_network, "REFERENCE_FRAMES", 201)
    assert network.gains_db() == pytest.approx(gains, abs=1e-3)
    assert gains.shape == (NUM_BINS,)
    assert gains.std() > 0


def test_score_is_weighted_by_the_branches() -> None:
    weights = {name: torch.zeros_like(value) for name, value in make_weights().items()}
    for name, weight, score in (("slow", 0.0, 0.2), ("normal", 2.0, 0.9), ("fast", -1.0, 0.4)):
        weights[f"decoder.{name}_layers.6.conv.bias"] = torch.tensor([weight, score])
    shares = np.exp([0.0, 2.0, -1.0]) / np.exp([0.0, 2.0, -1.0]).sum()
    found = WatermarkNetwork(weights).score(torch.rand(NUM_BINS, 40))
    assert found == pytest.approx(float(shares @ [0.2, 0.9, 0.4]), abs=1e-5)


def test_silent_frames_are_not_scored() -> None:
    network, levels = WatermarkNetwork(mean_weights()), torch.full((NUM_BINS, 80), 0.6)
    assert network.score(levels) == pytest.approx(0.6, abs=1e-5)
    padded = torch.cat((levels, torch.zeros(NUM_BINS, 240)), dim=1)
    assert network.score(padded) == pytest.approx(0.6, abs=0.02)
    quiet = torch.cat((levels, torch.full((NUM_BINS, 240), 0.2)), dim=1)
    assert network.score(quiet) == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("num_frames", [1, 2, 3, 5])
def test_few_frames_have_a_finite_score(num_frames: int) -> None:
    network = WatermarkNetwork(make_weights())
    assert np.isfinite(network.score(torch.rand(NUM_BINS, num_frames)))
    assert network.score(torch.zeros(NUM_BINS, num_frames)) == 0.0


# --- The package ------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that is searched first and has a package named as Perth."""
    (tmp_path / PACKAGE).mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    return tmp_path


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watermark_network, "PACKAGE", "package_that_does_not_exist")
    with pytest.raises(RequestError, match=r"resemble-perth.*pip install '\.\[mark\]'"):
        Watermark.load()


def test_package_without_weights_is_rejected(site: Path) -> None:
    (site / PACKAGE / "__init__.py").touch()
    with pytest.raises(CheckpointError, match="is missing"):
        find_weights()


def test_other_weights_are_rejected(site: Path) -> None:
    (site / PACKAGE / "__init__.py").touch()
    file = site / PACKAGE / WEIGHTS
    file.parent.mkdir(parents=True)
    torch.save({"model": make_weights()}, file)
    with pytest.raises(CheckpointError, match="SHA-256"):
        Watermark.load()


def test_weights_of_the_package_are_loaded(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / PACKAGE / "__init__.py").write_text("raise ImportError('needs librosa')")
    file = site / PACKAGE / WEIGHTS
    file.parent.mkdir(parents=True)
    torch.save({"model": make_weights(), "step": 1}, file)
    monkeypatch.setattr(watermark_network, "checked", lambda path, _: path)
    network = WatermarkNetwork.load()
    assert network.gains_db() == pytest.approx(WatermarkNetwork(make_weights()).gains_db())


# --- With the extra `mark` --------------------------------------------------------------------


@pytest.fixture(scope="module")
def mark() -> Watermark:
    try:
        return Watermark.load()
    except RequestError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def speech(embedded: TTS) -> Samples:
    return embedded.speak("Seven grey herons stood beside the old canal.", seed=1).samples


def test_speech_is_detected_after_it_is_marked(mark: Watermark, speech: Samples) -> None:
    marked = mark.stream(24_000).feed(speech)
    noise = np.random.default_rng(1).standard_normal(len(speech)).astype(np.float32)
    noise *= np.sqrt(np.mean(speech**2) / 100)  # 20 dB below the speech
    for change in (lambda x: x, lambda x: x[24_000:48_000], lambda x: x * 0.1, lambda x: x + noise):
        assert mark.detect(change(marked), 24_000).is_marked
        assert mark.detect(change(speech), 24_000).confidence < 0.1
    for rate in (8_000, 16_000, 22_050, 44_100, 48_000):
        assert mark.detect(resample(marked, 24_000, rate), rate).confidence > 0.8
        assert mark.detect(resample(speech, 24_000, rate), rate).confidence < 0.1


@pytest.mark.parametrize("rate", [8_000, 22_050, 48_000])
def test_stream_of_another_rate_is_detected(mark: Watermark, speech: Samples, rate: int) -> None:
    marked = mark.stream(rate).feed(resample(speech, 24_000, rate))
    assert mark.detect(marked, rate).confidence > 0.8


def test_encoder_changes_speech_by_the_constant_gains(mark: Watermark, speech: Samples) -> None:
    """The filter is as good as the encoder only if its output does not depend on the audio."""
    network = WatermarkNetwork.load()
    gains = network.gains_db()
    with torch.inference_mode():
        changes = network._run("encoder.layers", to_levels(speech, 24_000)[None])[0] * RANGE_DB
    errors = changes.numpy() - gains[:, None]
    assert np.sqrt(np.mean(gains**2)) > 1.5
    assert np.sqrt(np.mean(errors**2)) < 0.3


def test_noise_and_tones_are_not_detected(mark: Watermark) -> None:
    rng = np.random.default_rng(2)
    noise = rng.uniform(-0.5, 0.5, 72_000).astype(np.float32)
    for samples in (noise, np.cumsum(noise) / 100, tone(24_000, 3.0), tone(24_000, 0.01)):
        assert mark.detect(samples, 24_000).confidence < 0.1
