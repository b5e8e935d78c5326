"""A checkpoint that is read without PyTorch: the same audio, and the same errors."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from vivace import TTS
from vivace.backends.cpu.backend import CpuBackend
from vivace.backends.cpu.build import find_refusal
from vivace.backends.cpu.native_model import rope_frequencies
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.errors import BackendUnavailableError, CheckpointError
from vivace.prompt import Prompt
from vivace.speech import SamplingParams
from vivace.timing.head_selector import HeadSelector

pytestmark = pytest.mark.skipif(find_refusal() is not None, reason="there is no C++ library")

Tensors = dict[str, NDArray[np.generic]]
MODEL, CODEC = "model.safetensors", "speech_tokenizer/model.safetensors"
NORM, SNAKE = "talker.model.norm.weight", "decoder.decoder.1.block.0.alpha"
BIAS = "talker.text_projection.linear_fc1.bias"
VALUES = "talker.model.layers.0.self_attn.v_proj.weight"


@pytest.fixture(scope="module")
def light() -> Iterator[TTS]:
    with TTS.load() as tts:
        assert tts.loaded.open_runtime is not None
        assert tts.loaded.open_runtime._loaded is None
        yield tts


@pytest.fixture(scope="module")
def full() -> Iterator[TTS]:
    """The same backend with the weights of the PyTorch model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "vivace.engine.checkpoints.loading.load_without_torch", lambda *arguments: None
        )
        tts = TTS.load(backend="cpu", device="cpu")
    with tts:
        yield tts


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EMBEDDED, tmp_path / "voice"))


def open_folder(folder: Path) -> CpuBackend:
    found = Checkpoint.open(folder)
    return CpuBackend.open(folder, found.config, found.codec_config, 1)


def change(path: Path, edit: Callable[[Tensors], None]) -> None:
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def test_speech_equals_speech_of_the_pytorch_model(light: TTS, full: TTS) -> None:
    for seed, voice in enumerate(light.speakers):
        ours, theirs = (
            tts.speak("Well, hello.", voice=voice, seed=seed, max_frames=8) for tts in (light, full)
        )
        assert np.array_equal(ours.codes, theirs.codes)
        assert np.array_equal(ours.samples, theirs.samples)


def test_float16_weights_are_read_where_they_are(light: TTS) -> None:
    file_bytes = (EMBEDDED / MODEL).stat().st_size
    assert light.engine.backend.memory()["model"] < 1.1 * file_bytes


@pytest.mark.parametrize("part", ["k_proj", "v_proj"])
def test_matrices_in_float16_and_float32_are_mixed(copied: Path, light: TTS, part: str) -> None:
    name = f"talker.model.layers.1.self_attn.{part}.weight"
    change(copied / MODEL, lambda each: each.update({name: each[name].astype(np.float32)}))
    with TTS.load(copied) as tts:
        assert tts.loaded.open_runtime is not None
        assert tts.loaded.open_runtime._loaded is None
        ours, theirs = (each.speak("Well.", seed=1, max_frames=8) for each in (tts, light))
        assert np.array_equal(ours.samples, theirs.samples)


def test_machine_without_vectors_converts_weights(
    light: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivace.backends.cpu.file_tensors.instructions", lambda: "portable")
    with TTS.load() as tts:
        assert tts.engine.backend.memory()["model"] > light.engine.backend.memory()["model"]
        ours, theirs = (each.speak("Well.", seed=1, max_frames=8) for each in (tts, light))
        assert np.array_equal(ours.codes, theirs.codes)


def test_live_text_and_batch_equal_those_of_the_pytorch_model(light: TTS, full: TTS) -> None:
    live = [tts.speak(iter(["So it ", "goes."]), seed=4, max_frames=12) for tts in (light, full)]
    assert np.array_equal(live[0].samples, live[1].samples)
    batches = [tts.speak(["One.", "Number two."], seed=5, max_frames=8) for tts in (light, full)]
    for ours, theirs in zip(*batches, strict=True):
        assert np.array_equal(ours.samples, theirs.samples)


def test_word_timings_load_the_pytorch_model(full: TTS) -> None:
    with TTS.load() as tts:
        parts = tts.loaded.open_runtime
        assert parts is not None
        description = repr(tts)
        ours, theirs = (each.speak("Hello there.", seed=1, timings=True) for each in (tts, full))
        assert parts._loaded is not None
        assert repr(tts) == description
        assert (ours.words, str(tts.dtype)) == (theirs.words, "torch.float32")


def test_rope_frequencies_equal_those_of_the_reference() -> None:
    torch = pytest.importorskip("torch")
    from vivace.model import ops

    for head_dim in (16, 64, 128):
        wanted = ops.rope_frequencies(head_dim, 1e6, torch.device("cpu")).numpy()
        np.testing.assert_allclose(rope_frequencies(head_dim, 1e6), wanted, rtol=2e-7)


def test_text_vectors_do_not_depend_on_those_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [5, 480, 5, 7, 0, 481, 7, *range(300)]
    wanted = open_folder(EMBEDDED)._tensors.text_vectors(ids)
    tensors = open_folder(EMBEDDED)._tensors
    monkeypatch.setattr("vivace.backends.cpu.tensors.MAX_KEPT_BYTES", 4 * 256 * 20)
    few = open_folder(EMBEDDED)._tensors  # keeps 20 vectors
    for part in (ids[:3], ids[3:5], ids[:1], ids[2:20], ids[20:100], ids, ids[:7], []):
        for each in (tensors, few):
            assert np.array_equal(each.text_vectors(part), wanted[[ids.index(i) for i in part]])
    assert len(few._rows._kept) <= 20  # type: ignore[attr-defined]


def set_first(name: str, value: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = tensors[name].copy()
        tensors[name].flat[0] = value

    return change


def set_to_nan(name: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        tensors[name] = np.full_like(tensors[name], np.nan)

    return edit


def cut(name: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        tensors[name] = tensors[name][:-1].copy()

    return edit


def remove(name: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        del tensors[name]

    return edit


def narrow(name: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        tensors[name] = tensors[name][:, 1:].copy()

    return edit


def add(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: np.zeros(3, np.float16)})


@pytest.mark.parametrize(
    ("file", "edit", "name"),
    [
        (MODEL, set_to_nan(NORM), NORM),
        (MODEL, set_first(NORM, np.inf), NORM),
        (MODEL, set_first(NORM, -np.inf), NORM),
        (MODEL, cut(NORM), NORM),
        (MODEL, remove(NORM), NORM),
        (MODEL, remove(BIAS), BIAS),
        (MODEL, narrow(VALUES), VALUES),
        (MODEL, add("talker.model.extra"), "talker.model.extra"),
        (MODEL, add("talker.codec_head.bias"), "talker.codec_head.bias"),
        (CODEC, set_to_nan(SNAKE), SNAKE),
        (CODEC, cut(SNAKE), SNAKE),
        (CODEC, remove(SNAKE), SNAKE),
        (CODEC, add("decoder.extra"), "decoder.extra"),
    ],
)
def test_unexpected_tensor_is_reported_by_the_reader_of_pytorch(
    copied: Path, file: str, edit: Callable[[Tensors], None], name: str
) -> None:
    change(copied / file, edit)
    with pytest.raises(BackendUnavailableError):
        open_folder(copied)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        TTS.load(copied)


@pytest.mark.parametrize("file", [MODEL, CODEC])
@pytest.mark.parametrize("damage", ["truncated", "empty", "no header", "nested", "missing"])
def test_damaged_file_is_reported_by_the_reader_of_pytorch(
    copied: Path, file: str, damage: str
) -> None:
    path = copied / file
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        nested = (10**5).to_bytes(8, "little") + b"[" * 10**5
        contents = {"truncated": content[:-2], "no header": content[8:], "nested": nested}
        path.write_bytes(contents.get(damage, b""))
    with pytest.raises(BackendUnavailableError):
        open_folder(copied)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        TTS.load(copied)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("file", [MODEL, CODEC])
def test_pipe_in_place_of_a_file_is_refused(copied: Path, file: str) -> None:
    (copied / file).unlink()
    os.mkfifo(copied / file)
    with pytest.raises(BackendUnavailableError, match="is not a file"):
        open_folder(copied)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        TTS.load(copied)


@pytest.mark.parametrize("offsets", [[-4, 0], [0, 10**12], [2, 1], ["a", "b"]])
def test_entry_outside_the_file_is_refused(copied: Path, offsets: list[object]) -> None:
    header = json.dumps({NORM: {"dtype": "F16", "shape": [2], "data_offsets": offsets}}).encode()
    (copied / MODEL).write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    with pytest.raises(BackendUnavailableError):
        open_folder(copied)


@pytest.mark.parametrize("file", [MODEL, CODEC])
def test_tensors_that_share_their_numbers_are_refused(copied: Path, file: str) -> None:
    content = (copied / file).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    names = sorted(header.keys() - {"__metadata__"}, key=lambda name: str(header[name]["shape"]))
    first, second = next(
        (a, b) for a, b in pairwise(names) if header[a]["shape"] == header[b]["shape"]
    )
    header[first]["data_offsets"] = header[second]["data_offsets"]
    text = json.dumps(header, separators=(",", ":")).encode().ljust(start - 8)
    (copied / file).write_bytes(len(text).to_bytes(8, "little") + text + content[start:])
    with pytest.raises(BackendUnavailableError):
        open_folder(copied)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        TTS.load(copied)


LONG = "The old ferry crossed the quiet bay at noon, and nobody on board said a word."


def test_checkpoint_without_a_known_attention_head_is_left_to_pytorch(
    copied: Path, light: TTS
) -> None:
    raw = json.loads((copied / "config.json").read_text())
    assert raw.pop("timing_config")
    (copied / "config.json").write_text(json.dumps(raw))
    with TTS.load(copied) as tts:
        assert tts.loaded.open_runtime is not None
        assert tts.loaded.open_runtime._loaded is not None
        assert tts.engine.backend.watched is None
        tts.speak(LONG, seed=1)
        tts.engine.call(lambda: None)  # after the search, which the speech has posted
        assert tts.engine.backend.watched == light.engine.backend.watched


def test_attention_of_all_heads_equals_that_of_the_pytorch_model(light: TTS, full: TTS) -> None:
    backend, codes = light.engine.backend, light.speak(LONG, seed=1, guard=False).codes
    assert isinstance(backend, CpuBackend)
    prompt = write_prompt(light, LONG)
    num_ids = prompt.num_own_ids
    found = backend.read_attention(prompt, codes, num_ids)
    selector = HeadSelector(full.checkpoint.config, lambda: full.loaded.runtime.model)
    wanted = selector.read_all(prompt, codes, num_ids)
    assert found.shape == wanted.shape
    assert found.sum() > 1
    np.testing.assert_allclose(found, wanted, atol=2e-5)


def write_prompt(tts: TTS, text: str) -> Prompt:
    """The prompt of a text of one utterance."""
    admitted: list[Prompt] = []
    backend = tts.engine.backend
    assert isinstance(backend, CpuBackend)
    admit = backend.admit

    def note(prompt: Prompt, sampling: SamplingParams) -> int:
        admitted.append(prompt)
        return admit(prompt, sampling)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "admit", note)
        tts.speak(text, seed=1, guard=False)
    [prompt] = admitted
    return prompt
