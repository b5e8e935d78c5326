"""Several adapters beside one model, chosen per request: `TTS.load(model, adapters={...})`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.adapters import random_adapter, save_adapters
from tests.support.remote_engine import connected
from tests.support.tiny import Tiny
from vivace import TTS, Voice
from vivace.adapter_set import AdapterSet
from vivace.errors import (
    AdapterError,
    BackendUnavailableError,
    ClosedError,
    RequestError,
    UnknownVoiceError,
)

LoadTiny = Callable[[str], Tiny]
TEXT = "Hello there."
OPTIONS: dict[str, Any] = {"max_frames": 4, "seed": 7}


@pytest.fixture(scope="module")
def paths(tiny: LoadTiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters of the base checkpoint with different ranks and targets."""
    return save_adapters(tiny("base"), tmp_path_factory.mktemp("adapters"), ["ann", "bob", "cid"])


@pytest.fixture(scope="module")
def tts(tiny: LoadTiny, paths: dict[str, Path]) -> Iterator[TTS]:
    with TTS.load(tiny("base").checkpoint.folder, device="cpu", adapters=paths) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def voice(tiny: LoadTiny) -> Voice:
    """A cloned voice with an arbitrary speaker vector. It uses no adapter."""
    width = tiny("base").checkpoint.config.talker_config.hidden_size
    return Voice(name="clone", speaker=np.linspace(-1, 1, width, dtype=np.float32))


def codes_of(tts: TTS, **options: Any) -> list[list[int]]:
    codes: list[list[int]] = tts.speak(TEXT, **OPTIONS | options).codes.tolist()
    return codes


@pytest.mark.parametrize("name", ["ann", "bob", "cid"])
def test_adapter_speaks_as_when_it_is_merged(
    tiny: LoadTiny, tts: TTS, paths: dict[str, Path], name: str
) -> None:
    folder = tiny("base").checkpoint.folder
    with TTS.load(folder, device="cpu", backend="eager", adapter=paths[name]) as merged:
        expected = codes_of(merged)
    assert codes_of(tts, voice=name) == expected


def test_adapter_has_several_names(tts: TTS) -> None:
    expected = codes_of(tts, voice="ann", max_frames=2)
    assert codes_of(tts.adapters["ann"], max_frames=2) == expected  # the default voice of the view
    for name in ("ANN", "ann/ann"):
        assert codes_of(tts, voice=name, max_frames=2) == expected
    assert codes_of(tts, voice="bob", max_frames=2) != expected


def test_requests_with_and_without_adapters_run_together(tts: TTS, voice: Voice) -> None:
    voices: list[str | Voice] = ["ann", voice, "bob", "cid", "ann"]
    alone = [codes_of(tts, voice=one, seed=seed) for seed, one in enumerate(voices)]

    async def speak_all() -> list[list[list[int]]]:
        jobs = [
            tts.aspeak(TEXT, voice=one, seed=seed, max_frames=4) for seed, one in enumerate(voices)
        ]
        return [audio.codes.tolist() for audio in await asyncio.gather(*jobs)]

    assert asyncio.run(speak_all()) == alone
    assert alone[0] != alone[4]  # another seed


def test_request_without_adapter_equals_engine_without_adapters(
    tiny: LoadTiny, tts: TTS, voice: Voice
) -> None:
    with TTS.load(tiny("base").checkpoint.folder, device="cpu", backend="eager") as plain:
        expected = plain.speak(TEXT, voice=voice, **OPTIONS)
    found = tts.speak(TEXT, voice=voice, **OPTIONS)
    assert np.array_equal(found.codes, expected.codes)
    assert np.array_equal(found.samples, expected.samples)


@pytest.mark.parametrize("sizes", [(1,), (2, 1), (8,)])
def test_stream_with_adapter_equals_whole_speech(tts: TTS, sizes: tuple[int, ...]) -> None:
    whole = tts.speak(TEXT, voice="bob", trim=False, trim_start=True, **OPTIONS)
    chunks = list(tts.stream(TEXT, voice="bob", chunk_frames=sizes, **OPTIONS))
    assert np.array_equal(np.concatenate([chunk.codes for chunk in chunks]), whole.codes)
    samples = np.concatenate([chunk.samples for chunk in chunks])
    np.testing.assert_allclose(samples, whole.samples, atol=1e-4)  # PyTorch's codec rounds by size


def test_live_text_and_batches_take_adapter_voices(tts: TTS) -> None:
    pieces = tts.speak(iter(["Hello ", "there."]), voice="ann", live="sentence", **OPTIONS)
    assert pieces.codes.tolist() == codes_of(tts, voice="ann")
    batch = tts.speak([TEXT, TEXT], voice="ann", max_frames=4, temperature=0)
    one = tts.speak(TEXT, voice="ann", max_frames=4, temperature=0)
    assert [audio.codes.tolist() for audio in batch] == [one.codes.tolist()] * 2


def test_dialogue_between_adapters_equals_their_own_speech(tts: TTS) -> None:
    talk = tts.dialogue([("ann", TEXT), ("cid", TEXT)], seed=3, max_frames=3)
    for number, (line, name) in enumerate(zip(talk.lines, ("ann", "cid"), strict=True)):
        alone = tts.speak(TEXT, voice=name, seed=3 + 10_000 * number, max_frames=3)
        assert np.array_equal(line.audio.codes, alone.codes), name


def test_timings_use_the_adapter(tiny: LoadTiny, tts: TTS, paths: dict[str, Path]) -> None:
    folder = tiny("base").checkpoint.folder
    options: dict[str, Any] = {"timings": True, "max_frames": 8, "min_frames": 8, "seed": 2}
    with TTS.load(folder, device="cpu", backend="eager", adapter=paths["ann"]) as merged:
        expected = merged.speak(TEXT, **options).words
    assert tts.speak(TEXT, voice="ann", **options).words == expected


def test_voices_of_adapters_are_listed(tts: TTS) -> None:
    assert tts.speakers == ["ann", "bob", "cid"]
    assert list(tts.adapters) == ["ann", "bob", "cid"]
    assert tts.model_type == "base"
    view = tts.adapters["bob"]
    assert (view.model_type, view.speakers) == ("custom_voice", ["bob"])
    assert tts.voice("bob") == "bob"


def test_unknown_names_list_what_exists(tts: TTS) -> None:
    with pytest.raises(UnknownVoiceError, match=r"no voice named 'eve'.*ann, bob, cid"):
        tts.speak(TEXT, voice="eve")
    with pytest.raises(UnknownVoiceError, match=r"no voice named 'ann/eve'.*ann/ann"):
        tts.speak(TEXT, voice="ann/eve")
    with pytest.raises(RequestError, match="transcript needs a recording"):
        tts.voice("ann", transcript="Hello.")


def test_base_still_clones_beside_adapters(tts: TTS) -> None:
    noise = np.random.default_rng(1).normal(0, 0.1, tts.sample_rate).astype(np.float32)
    cloned = tts.clone((noise, tts.sample_rate))
    assert tts.speak(TEXT, voice=cloned, **OPTIONS).codes.shape[1] == 16


def test_presets_of_the_base_speak_with_the_adapter(tiny: LoadTiny, tmp_path: Path) -> None:
    part = tiny("custom_voice")
    adapter = random_adapter(part, 1, speakers=["ann", "bob"])
    adapter.save(tmp_path / "a.safetensors")
    folder = part.checkpoint.folder
    with TTS.load(folder, device="cpu", backend="eager", adapter=tmp_path / "a.safetensors") as tts:
        expected = {name: codes_of(tts, voice=name) for name in ("ann", "bob", "ryan")}
    with TTS.load(folder, device="cpu", adapters={"duo": tmp_path / "a.safetensors"}) as tts:
        assert {"duo/ann", "duo/bob", "ryan"} <= set(tts.speakers)
        assert "duo" not in tts.speakers
        for name, codes in expected.items():
            assert codes_of(tts, voice=f"duo/{name}") == codes
        assert codes_of(tts, voice="duo") == expected["ann"]
        assert codes_of(tts, voice="ryan") != expected["ryan"]
        with pytest.raises(UnknownVoiceError, match=r"duo/bob.*ryan"):
            tts.speak(TEXT, voice="nobody")


def test_adapter_without_speakers_designs_voices(tiny: LoadTiny, tmp_path: Path) -> None:
    part = tiny("voice_design")
    random_adapter(part, 1, speakers=()).save(tmp_path / "a.safetensors")
    folder, options = part.checkpoint.folder, {"instruct": "A calm voice."}
    with TTS.load(folder, device="cpu", backend="eager", adapter=tmp_path / "a.safetensors") as tts:
        expected = codes_of(tts, **options)
    with TTS.load(folder, device="cpu", adapters={"calm": tmp_path / "a.safetensors"}) as tts:
        assert codes_of(tts, voice="calm", **options) == expected
        assert codes_of(tts, **options) != expected


def test_closed_base_closes_its_adapters(tiny: LoadTiny, paths: dict[str, Path]) -> None:
    tts = TTS.load(tiny("base").checkpoint.folder, device="cpu", adapters=paths)
    view = tts.adapters["ann"]
    view.close()  # the weights belong to the base
    assert "custom_voice" in repr(view)
    assert codes_of(view) == codes_of(tts, voice="ann")
    tts.close()
    assert "closed" in repr(view)
    with pytest.raises(ClosedError):
        view.speak(TEXT)


def test_rebuilt_backend_keeps_the_adapters(tiny: LoadTiny, paths: dict[str, Path]) -> None:
    with TTS.load(tiny("base").checkpoint.folder, device="cpu", adapters=paths) as tts:
        expected = codes_of(tts, voice="cid")
        worker = tts.engine._worker
        assert worker.rebuild is not None
        worker.backend = worker.rebuild()
        assert codes_of(tts, voice="cid") == expected


def test_remote_engine_speaks_with_adapters(tts: TTS, paths: dict[str, Path]) -> None:
    with connected(tts, paths) as pair:
        assert pair.remote.speakers == tts.speakers
        for name in ("ann", "cid"):
            assert codes_of(pair.remote, voice=name) == codes_of(tts, voice=name)


# --- Refused ----------------------------------------------------------------------------------


def test_adapters_of_another_base_are_refused(tiny: LoadTiny, paths: dict[str, Path]) -> None:
    with pytest.raises(AdapterError, match="was trained for base, and the weights"):
        TTS.load(tiny("base_projected").checkpoint.folder, device="cpu", adapters=paths)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["me", "Me"], "two adapters are named 'Me'"),
        ([""], "adapter name '' is not valid"),
        (["a/b"], "adapter name 'a/b' is not valid"),
        ([3], "adapter name 3 is not valid"),
    ],
)
def test_names_that_cannot_be_voices_are_refused(
    tiny: LoadTiny, paths: dict[str, Path], names: list[Any], message: str
) -> None:
    with pytest.raises(AdapterError, match=message):
        TTS.load(tiny("base").checkpoint.folder, adapters=dict.fromkeys(names, paths["ann"]))


def test_name_of_a_preset_is_refused(tiny: LoadTiny, tmp_path: Path) -> None:
    part = tiny("custom_voice")
    random_adapter(part, 1).save(tmp_path / "a.safetensors")
    with pytest.raises(AdapterError, match="'Ryan' has the name of a preset voice"):
        TTS.load(
            part.checkpoint.folder, device="cpu", adapters={"Ryan": tmp_path / "a.safetensors"}
        )


def test_adapter_with_whole_tensors_can_only_be_merged(tiny: LoadTiny, tmp_path: Path) -> None:
    part = tiny("base")
    name = "talker.model.codec_embedding.weight"
    weight = part.model.get_parameter(name).detach() + 1
    adapter = dataclasses.replace(random_adapter(part, 1), weights={name: weight})
    adapter.save(tmp_path / "a.safetensors")
    folder = part.checkpoint.folder
    with pytest.raises(AdapterError, match=f"replaces 1 whole tensors, such as {name}"):
        TTS.load(folder, device="cpu", adapters={"a": tmp_path / "a.safetensors"})
    with TTS.load(folder, device="cpu", adapter=tmp_path / "a.safetensors") as tts:
        assert tts.speakers == ["me"]


def test_merged_and_mixed_adapters_exclude_each_other(
    tiny: LoadTiny, paths: dict[str, Path]
) -> None:
    with pytest.raises(RequestError, match="give one of the two"):
        TTS.load(tiny("base").checkpoint.folder, adapter=paths["ann"], adapters=paths)


def test_integer_weights_are_refused(tiny: LoadTiny, paths: dict[str, Path]) -> None:
    with pytest.raises(AdapterError, match="cannot be mixed with weights int8"):
        TTS.load(tiny("base").checkpoint.folder, weights="int8", adapters=paths)


def test_backend_that_cannot_mix_is_refused(tiny: LoadTiny, paths: dict[str, Path]) -> None:
    tiny("base").cpu_backend()  # skips without a compiler
    with pytest.raises(BackendUnavailableError, match="it cannot mix adapters"):
        TTS.load(tiny("base").checkpoint.folder, device="cpu", backend="cpu", adapters=paths)


def test_empty_set_of_adapters_loads_the_plain_model(tiny: LoadTiny) -> None:
    with TTS.load(tiny("base").checkpoint.folder, device="cpu", adapters={}) as tts:
        assert tts.adapters == {}
        assert tts.loaded.runtime.model.num_adapters == 0


def test_vector_of_another_width_is_refused(tiny: LoadTiny) -> None:
    part = tiny("base")
    adapter = random_adapter(part, 1)
    wrong = dataclasses.replace(adapter, vectors={"me": torch.zeros(3)})
    with pytest.raises(AdapterError, match="a speaker has 3 values"):
        AdapterSet({"a": wrong}).extend(part.checkpoint.config)


def test_speaker_with_an_id_that_is_not_free_is_refused(tiny: LoadTiny) -> None:
    part = tiny("base")
    adapter = random_adapter(part, 1)
    wrong = dataclasses.replace(adapter, info=dataclasses.replace(adapter.info, speakers={"me": 3}))
    with pytest.raises(AdapterError, match="the speaker 'me' has the id 3, which is not free"):
        AdapterSet({"a": wrong}).extend(part.checkpoint.config)


def test_missing_file_is_named(tiny: LoadTiny, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"gone\.safetensors"):
        TTS.load(tiny("base").checkpoint.folder, adapters={"a": tmp_path / "gone.safetensors"})
