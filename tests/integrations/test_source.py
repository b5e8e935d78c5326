"""`LocalSource`: the engine of this process as a source of PCM at the rate of a framework."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from tests.support.voice_sources import voice_under_test
from vivace import TTS
from vivace.audio.resample import StreamResampler
from vivace.integrations.open import LocalSource
from vivace.integrations.source import Sound, pcm_bytes


def speak(tts: TTS, rate: int) -> list[Sound]:
    async def collect() -> list[Sound]:
        return [sound async for sound in LocalSource(tts).speak("Hello there.", rate, seed=7)]

    return asyncio.run(collect())


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
def test_local_source_yields_all_resampled_samples_and_no_empty_sound(
    tmp_path: Path, rate: int
) -> None:
    with voice_under_test("in process", tmp_path) as under_test:
        assert isinstance(under_test.voice, TTS)
        sounds = speak(under_test.voice, rate)
        whole = under_test.voice.speak("Hello there.", seed=7, trim=False).samples
    resampler = StreamResampler(24_000, rate)
    expected = np.concatenate([resampler.process(whole), resampler.finish()])
    received = np.frombuffer(b"".join(sound.pcm for sound in sounds), "<i2")
    wanted = np.frombuffer(pcm_bytes(expected), "<i2")
    assert len(received) == len(wanted) == -(-len(whole) * rate // 24_000)
    assert np.abs(received.astype(int) - wanted).max() <= 1  # rounding
    assert all(sound.pcm for sound in sounds)
    assert {sound.sample_rate for sound in sounds} == {rate}
