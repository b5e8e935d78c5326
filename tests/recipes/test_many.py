"""Training with many speakers: training voices, speaker vectors, and the script of three parts."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch import Tensor

from tests.support.project import ROOT

if TYPE_CHECKING:
    from recipes.mini_voice.store import Store

pytest.importorskip("tomllib", reason="the recipe reads TOML with Python 3.11's own library")
NAMES = ("af_ann", "af_bella", "am_max", "bf_eve", "bm_ian", "bm_tom")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Six voices whose style is their number; one is held out."""
    from recipes.mini_voice.voices import pack

    for number, name in enumerate(NAMES):
        styles = np.full((510, 256), number, np.float32) + np.arange(510)[:, None] / 1000
        styles.astype(np.float32).tofile(tmp_path / f"{name}.bin")
    pack(tmp_path, tmp_path / "voices.npz")
    return tmp_path / "voices.npz"


def test_packed_style_equals_file(packed: Path) -> None:
    from recipes.mini_voice.voices import Voice, Voices

    voices, whole = Voices(packed), Voice.from_file(packed.parent / "bm_ian.bin")
    for length in (0, 1, 7, 200, 508, 509, 700):
        style = voices.named("bm_ian").style(length)
        assert style.shape == (1, 256)
        np.testing.assert_allclose(style, whole.style(length), atol=4e-3)
        np.testing.assert_allclose(whole.style(length), whole.styles[[min(length, 509)]], atol=1e-5)


def test_training_voices_have_no_held_out_voice_and_repeat(packed: Path) -> None:
    from recipes.mini_voice.voices import HELD_OUT, NUM_VOICES, Voices

    voices, again = Voices(packed), Voices(packed)
    assert voices.names == [name for name in NAMES if name not in HELD_OUT]
    assert [voices[number].name for number in range(5)] == voices.names
    assert voices[NUM_VOICES + 2].name == voices.names[2]
    mixtures = [voices[number] for number in range(5, NUM_VOICES)]
    for one in mixtures:
        assert 0.87 <= one.pitch <= 1.15
        assert -2.5 <= one.style(0).min() <= one.style(0).max() <= 7.5
    assert len({round(one.pitch, 6) for one in mixtures}) > 200
    np.testing.assert_array_equal(mixtures[7].style(9), again[12].style(9))
    # Only bella has style 1, so no mixture of voices of one sex, male, may come near to it.
    timbres = {round(float(one.style(0)[0, 0]), 3) for one in mixtures}
    assert len(timbres) > 100


@pytest.mark.parametrize("pitch", [0.93, 1.0, 1.08])
def test_repitched_tone_has_other_frequency_and_level_of_before(pitch: float) -> None:
    from recipes.mini_voice.voices import Voice

    tone = np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000).astype(np.float32)
    voice = Voice("one", np.zeros((2, 256), np.float32), np.arange(2), pitch)
    changed = voice.repitch(tone)
    assert len(changed) == round(24_000 / pitch)
    spectrum = np.abs(np.fft.rfft(changed))
    assert spectrum.argmax() * 24_000 / len(changed) == pytest.approx(440 * pitch, abs=1)
    assert np.sqrt(np.mean(changed**2)) == pytest.approx(np.sqrt(0.5), rel=0.01)


def test_speaker_vector_is_of_same_voice_and_zero_for_presets(tmp_path: Path) -> None:
    import torch

    from recipes.mini_voice.settings import load_settings
    from recipes.mini_voice.speaker_vectors import SpeakerVectors, voices_of_lines
    from recipes.mini_voice.voices import NUM_VOICES

    settings = load_settings(True, ['data.speakers=["heart", "michael", "training_voices"]'])
    others = 2_000_000 + np.array([0, NUM_VOICES, 1, 2 * NUM_VOICES + 1])
    lines = np.array([4, 1_000_004, *others])
    voices = voices_of_lines(settings, lines)
    assert voices.tolist() == [-1, -1, 0, 0, 1, 1]
    vectors = np.arange(4)[:, None] * np.ones((4, 3), np.float16)
    np.savez(tmp_path / "speakers.npz", lines=lines[2:], vectors=vectors)
    speakers = SpeakerVectors.read(tmp_path / "speakers.npz")
    wanted = torch.tensor([-1, 0, 1, 77] * 50)
    drawn = speakers.draw(wanted)[:, 0].view(50, 4)
    assert set(drawn[:, 0].tolist()) == set(drawn[:, 3].tolist()) == {0}
    assert set(drawn[:, 1].tolist()) == {0, 1}
    assert set(drawn[:, 2].tolist()) == {2, 3}


def test_rows_of_training_voices_have_vector_where_presets_have_id() -> None:
    import torch

    from recipes.mini_voice.rows import Ids, prompt_rows
    from recipes.mini_voice.settings import load_settings, speaker_ids
    from recipes.mini_voice.talker_files import build, embed
    from vivace.model.config import SPEAKER
    from vivace.text.tokenizer import TextTokenizer

    settings = load_settings(True, ['data.speakers=["heart", "training_voices"]'])
    assert list(speaker_ids(settings)) == ["heart"]
    tokenizer = TextTokenizer.from_folder(ROOT / settings.tokenizer.folder)
    talker = build(settings, tokenizer)
    rows = [
        prompt_rows([5, 6], talker.config, Ids.of(tokenizer), speaker=speaker, is_streaming=False,
                    is_auto=False)
        for speaker in (0, None)
    ]  # fmt: skip
    place = rows[1][1].index(SPEAKER)
    assert rows[0][1][place] == talker.config.spk_id["heart"]
    text = torch.tensor([rows[1][0]])
    codes = torch.full((1, text.shape[1], settings.codec.num_quantizers), -1)
    codes[0, :, 0] = torch.tensor(rows[1][1])
    vector = torch.randn(1, talker.config.hidden_size)
    expected = talker.rows(text[0], codes[0], vector.expand(text.shape[1], -1))
    torch.testing.assert_close(embed(talker, text, codes, vector)[0], expected)
    other = embed(talker, text, codes, 2 * vector)[0] - expected
    assert other.abs().sum(1).nonzero().flatten().tolist() == [place]


SCRIPT = ROOT / "recipes" / "mini_voice" / "train_many.sh"
PYTHON = r"""#!/usr/bin/env bash
if [ "$FAILS" = hold ]; then # the call of the first part does not count
  until [ -f "$WORK/release" ] || [ $((++tries)) -gt 600 ]; do sleep 0.2; done
  exit 0
fi
echo "$@" >> "$CALLS"
for word in "$@"; do [ "${before:-}" = --out ] && out=$word; before=$word; done
case "$*" in
  *mini_voice.synthesize\ *) [ "$FAILS" = synthesis ] && exit 1; echo "shard 3" ;;
  *mini_voice.train_all_codec\ *)
    [ "$FAILS" = codec ] && exit 1
    for name in encoder decoder; do
      echo one > "$out/$name.safetensors"
    done
    for name in codes_a.npy codes_b.npy utterances.npz; do echo one > "$out/$name"; done ;;
  *mini_voice.leads\ *) echo one > "$out/leads.npy" ;;
  *mini_voice.more_codes\ *)
    [ "$FAILS" = more ] && exit 1
    for name in codes_a.npy codes_b.npy utterances.npz; do echo more > "$out/$name"; done ;;
  *mini_voice.average_decoders\ *) mkdir -p "$out"; echo mean > "$out/decoder.safetensors" ;;
  *mini_voice.train_gan\ *)
    for number in 0011 0012 0013 0014 0015; do
      [ "$FAILS" = keep ] || break
      mkdir -p "$out/kept/$number" && echo $number > "$out/kept/$number/decoder.safetensors"
    done
    until [ ! -f "$WORK/hold" ] || [ $((++tries)) -gt 600 ]; do
      echo early > "$out/decoder.safetensors"; sleep 0.1
    done
    for name in decoder discriminators listener; do echo two > "$out/$name.safetensors"; done
    [ "$FAILS" = gan ] || echo "stage=done" ;;
  *mini_voice.train_speakers\ *)
    echo two > "$out/speaker_encoder.safetensors"; echo two > "$out/speakers.npz"
    echo '{}' > "$out/speakers.jsonl" ;;
  *mini_voice.train_encoder\ *)
    [ "$FAILS" = encoder ] && exit 1
    echo three > "$out/codec_encoder.safetensors" ;;
  *mini_voice.train_talker\ *)
    for part in a b; do echo three > "$out/talker_$part.safetensors"; done ;;
esac
[ -d "${out:-}" ] && echo '{}' > "$out/log.jsonl"
exit 0
"""


def sit(
    tmp_path: Path, part: str, fails: str = "", **extra: str
) -> tuple[int, dict[str, str], list[str]]:
    carry, out = tmp_path / "carry", tmp_path / f"out_{part}"
    carry.mkdir(exist_ok=True)
    for name in ("encoder", "decoder", "discriminators", "listener", "talker_a", "talker_b"):
        (carry / f"{name}.safetensors").write_text("old\n")
    (carry / "rare.txt.gz").write_bytes(gzip.compress(b"a rare line\n"))
    (carry / "lines.txt.gz").write_bytes(gzip.compress(b"a line\n"))
    python = tmp_path / "python"
    if not python.exists():  # a process of an earlier part may be starting from it
        python.write_text(PYTHON)
        python.chmod(0o755)
    (tmp_path / "calls").touch()
    places = {"OUT": out, "WORK": tmp_path / "work", "PYTHON": python, "CALLS": tmp_path / "calls"}
    done = subprocess.run(
        ["bash", str(SCRIPT), part, str(carry), "100"],
        cwd=ROOT,
        env={
            **os.environ, "FAILS": fails, "FIRST_SHARDS_S": "2", "FIRST_SHARDS": "1", "MARGIN": "5",
            **{name: str(path) for name, path in places.items()},
            **extra,
        },
        capture_output=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    files = [path for path in out.rglob("*") if path.is_file()]
    back = {
        str(path.relative_to(out)): path.read_bytes().decode("latin-1").strip() for path in files
    }
    return done.returncode, back, (tmp_path / "calls").read_text().splitlines()


def readers(calls: list[str]) -> list[str]:
    """The speakers whose lines were read."""
    return [call[-1] for call in calls if "mini_voice.synthesize" in call]


def talker_calls(calls: list[str]) -> list[str]:
    return [call for call in calls if "mini_voice.train_talker " in call]


def test_three_parts_on_one_machine_use_earlier_results(tmp_path: Path) -> None:
    status, back, calls = sit(tmp_path, "codec")
    assert status == 0
    assert back["encoder.safetensors"] == back["codes_b.npy"] == "one"
    assert sorted({*readers(calls)} - {"0"}) == ["1", "2"]  # heart is read in the background
    status, back, calls = sit(tmp_path, "decoder")
    assert status == 0
    assert back["decoder.safetensors"] == back["speaker_encoder.safetensors"] == "two"
    assert sorted(set(readers(calls)) - {"0"}) == ["1", "2"]
    assert readers(calls).count("2") == 1  # not again
    assert [call for call in calls if "mini_voice.leads" in call]
    status, back, calls = sit(tmp_path, "talker")
    assert status == 0
    assert back["talker_a.safetensors"] == back["talker_b.safetensors"] == "three"
    assert back["codec_encoder.safetensors"] == "three"
    work = tmp_path / "work"
    first, second = talker_calls(calls)
    assert f'train_talker.codes="{work / "codec"}"' in first
    assert f"--resume {work / 'known'}" in first
    assert f'train_talker.codes="{work / "all"}"' in second
    assert f"--resume {work / 'talker'}" in second
    assert (tmp_path / "work" / "all" / "leads.npy").read_text() == "one\n"


def test_carried_speaker_encoder_is_continued(tmp_path: Path) -> None:
    assert sit(tmp_path, "codec")[0] == 0
    (tmp_path / "carry" / "speaker_encoder.safetensors").write_text("known\n")
    status, back, calls = sit(tmp_path, "decoder")
    assert (status, back["speaker_encoder.safetensors"]) == (0, "two")
    [call] = [call for call in calls if "mini_voice.train_speakers" in call]
    assert f"--resume {tmp_path / 'carry'}" in call


def test_speaker_loss_is_used_if_its_network_is_carried(tmp_path: Path) -> None:
    _, _, calls = sit(tmp_path, "codec")
    assert not [call for call in calls if "speaker_weight" in call]
    (tmp_path / "carry" / "eres2net").mkdir()
    _, _, calls = sit(tmp_path, "codec")
    assert "train_codec.speaker_weight=0.05" in calls[-1]
    assert "train_gan.speaker_weight=0.3" in calls[-1]


def test_later_parts_begin_from_carried_results_on_new_machine(tmp_path: Path) -> None:
    made = tmp_path / "carry" / "made"
    made.mkdir(parents=True)
    for part in ("codec", "decoder"):
        assert sit(tmp_path, part)[0] == 0
        for path in (tmp_path / f"out_{part}").iterdir():
            (made / path.name).write_bytes(path.read_bytes())
    (tmp_path / "work").rename(tmp_path / "machine_that_was_given_back")
    status, back, _ = sit(tmp_path, "talker")
    assert (status, back["talker_a.safetensors"]) == (0, "three")
    work = tmp_path / "work"
    assert (work / "codec" / "leads.npy").read_text() == "one\n"
    assert (work / "speakers" / "speakers.npz").read_text() == "two\n"


def test_decoders_of_last_minutes_are_averaged(tmp_path: Path) -> None:
    assert sit(tmp_path, "codec")[0] == 0
    assert "mean/decoder.safetensors" not in sit(tmp_path, "decoder")[1]  # too short
    status, back, calls = sit(tmp_path, "decoder", "keep")
    assert (status, back["mean/decoder.safetensors"]) == (0, "mean")
    assert back["decoder.safetensors"] == "two"
    [call] = [call for call in calls if "mini_voice.average_decoders" in call]
    folders = [Path(word).name for word in call.split() if str(tmp_path / "work") in word]
    assert folders[-5:] == ["codec", "0013", "0014", "0015", "mean"]


def test_training_of_decoder_continues_beyond_its_part(tmp_path: Path) -> None:
    assert sit(tmp_path, "codec")[0] == 0
    hold = tmp_path / "work" / "hold"
    hold.touch()
    try:
        status, back, calls = sit(tmp_path, "decoder", GAN="170")
        assert status == 0
        [call] = [call.split() for call in calls if "mini_voice.train_gan" in call]
        assert call[call.index("--until") + 1] == "170"
        pid = int((tmp_path / "work" / "gan.pid").read_text())
        os.kill(pid, 0)  # it still runs
    finally:
        hold.unlink()
    status, back, calls = sit(tmp_path, "talker")
    assert (status, back["decoder.safetensors"]) == (0, "two")
    assert len([call for call in calls if "mini_voice.train_gan" in call]) == 1


def test_without_cloning_presets_are_trained_alone(tmp_path: Path) -> None:
    (tmp_path / "carry" / "eres2net").mkdir(parents=True)
    for part in ("codec", "decoder", "talker"):
        status, back, calls = sit(tmp_path, part, CLONING="0", EARLY_TALKER="0", ENCODER="0")
        assert status == 0
    assert back["talker_a.safetensors"] == "three"
    assert {*readers(calls)} - {"0"} == {"1"}  # heart is read in the background
    assert not [call for call in calls if "speaker_weight" in call or ".train_speakers " in call]
    trained = [call for call in calls if "data.speakers" in call]
    assert all('data.speakers=["heart", "michael"]' in call for call in trained)
    [talker] = talker_calls(calls)  # in its own part alone
    assert "train_talker.speakers" not in talker


def test_interrupted_training_of_decoder_restarts_in_next_part(tmp_path: Path) -> None:
    assert sit(tmp_path, "codec")[0] == 0
    assert sit(tmp_path, "decoder", "gan", GAN="170")[0] == 0
    status, back, calls = sit(tmp_path, "talker")
    assert (status, back["decoder.safetensors"]) == (0, "two")
    assert len([call for call in calls if "mini_voice.train_gan" in call]) == 2


@pytest.mark.parametrize(("fails", "expected"), [("synthesis", 3), ("codec", 1)])
def test_failed_stage_ends_part_without_results(tmp_path: Path, fails: str, expected: int) -> None:
    status, back, _ = sit(tmp_path, "codec", fails)
    assert (status, back) == (expected, {})


def test_talker_uses_first_codes_if_further_lines_have_none(tmp_path: Path) -> None:
    for part in ("codec", "decoder"):
        assert sit(tmp_path, part, "more")[0] == 0
    status, back, calls = sit(tmp_path, "talker", "encoder")
    assert status == 0
    assert f'train_talker.codes="{tmp_path / "work" / "codec"}"' in talker_calls(calls)[-1]
    assert "codec_encoder.safetensors" not in back  # its failure does not end the part
    [encoder] = [call.split() for call in calls if "mini_voice.train_encoder" in call]
    assert 5 <= int(encoder[encoder.index("--seconds") + 1]) <= 80  # of 100 s
    status, back, calls = sit(tmp_path, "talker", ENCODER="0")
    assert (status, "codec_encoder.safetensors" in back) == (0, False)
    assert len([call for call in calls if "mini_voice.train_encoder" in call]) == 1


def test_hibari_reads_on_between_first_two_parts(tmp_path: Path) -> None:
    assert sit(tmp_path, "read", "hold")[:2] == (0, {})
    pid = int((tmp_path / "work" / "read0.pid").read_text())
    try:
        assert sit(tmp_path, "codec")[0] == 0
        os.kill(pid, 0)  # it still runs
    finally:
        (tmp_path / "work" / "release").touch()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert sorted(readers(calls)) == ["1", "2"]


@pytest.fixture
def _own_modules() -> Iterator[None]:
    """Forget the modules of generated files."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("hibari", "speakerlab"):
            del sys.modules[name]


@pytest.mark.usefixtures("_own_modules")
def test_speaker_loss_moves_generated_samples_towards_real_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from recipes.mini_voice import eres2net, synthetic_inputs

    monkeypatch.setattr("sys.path", [*sys.path])
    torch.manual_seed(1)
    synthetic_inputs.write_speaker_network(tmp_path)
    loss = eres2net.SpeakerLoss(tmp_path, dither=0.0)
    times = torch.arange(12_000) / 24_000
    true = torch.stack([torch.sin(6.28 * pitch * times) for pitch in (220, 500)])
    made = (0.1 * torch.randn_like(true)).requires_grad_()
    assert float(loss(true, true)) == pytest.approx(0, abs=1e-5)
    before = loss(made, true)
    (slope,) = torch.autograd.grad(before, made)
    assert slope.norm() > 0
    after = loss(made.detach() - 1e-3 * slope / slope.norm(), true)
    assert 0 < after < before


@pytest.fixture
def crops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SimpleNamespace, Store]:
    """Settings with the speaker loss, and a store of two presets and the training voices."""
    from recipes.mini_voice import synthetic_inputs
    from recipes.mini_voice.settings import load_settings
    from recipes.mini_voice.store import Store
    from recipes.mini_voice.synthesize import plan

    monkeypatch.setattr("sys.path", [*sys.path])
    synthetic_inputs.write_speaker_network(tmp_path / "network")
    (tmp_path / "lines.txt").write_text("".join(f"Sentence {number}.\n" for number in range(8)))
    paths = {
        "data.lines": tmp_path / "lines.txt", "data.rare": tmp_path / "none",
        "data.shards": tmp_path, "train_speakers.network": tmp_path / "network",
    }  # fmt: skip
    settings = load_settings(True, [
        'data.speakers=["heart", "michael", "training_voices"]', "data.num_dev=2",
        "train_codec.speaker_weight=0.05", "train_gan.speaker_weight=0.3",
        *(f'{name}="{path}"' for name, path in paths.items()),
    ])  # fmt: skip
    rng = np.random.default_rng(2)
    for index, read in enumerate(plan(settings.data)):
        frames = np.full(len(read), 20)
        np.savez(
            tmp_path / f"{index:05d}.npz", lines=np.array([number for number, _ in read]),
            audio=rng.normal(0, 1000, frames.sum() * 1920).astype(np.int16), frames=frames,
            labels=np.zeros(2 * frames.sum(), np.uint8),
        )  # fmt: skip
    store = Store(settings.data, settings.codec.num_quantizers)
    store.wait(complete=True, timeout=1)
    return settings, store


@pytest.mark.usefixtures("_own_modules")
def test_speaker_loss_applies_to_training_voices_alone(
    crops: tuple[SimpleNamespace, Store],
) -> None:
    import torch

    from recipes.mini_voice import train_codec, train_gan

    settings, store = crops
    trainer = train_codec.build(settings)
    codec = train_codec.Stage(settings, store, trainer)
    assert 0 < float(codec.step(is_quantised=True)["speaker"]) < 2
    gan = train_gan.Stage(settings, store, trainer.decoder)
    _, gradients, *_ = gan._losses()
    assert (gradients[-1].abs().sum(1) > 0).tolist() == [False, False, True]
    assert all((gradient.abs().sum(1) > 0).all() for gradient in gradients[:-1])
    assert torch.isfinite(torch.stack(gradients)).all()


@pytest.mark.usefixtures("_own_modules")
def test_stages_continue_without_speaker_loss_that_cannot_be_captured(
    crops: tuple[SimpleNamespace, Store],
) -> None:
    from recipes.mini_voice import train_codec, train_gan
    from recipes.mini_voice.common import Step

    settings, store = crops
    trainer = train_codec.build(settings)
    codec = train_codec.Stage(settings, store, trainer)
    gan = train_gan.Stage(settings, store, trainer.decoder)

    def attempt(stage: Any, run: Callable[[], dict[str, Tensor]]) -> Step:
        step = Step("test", run, stage.reset, [], use_graph=False)
        step.has_failed = stage.speaker is not None
        return step

    stages: list[tuple[Any, Callable[[], dict[str, Tensor]]]] = [
        (codec, lambda: codec.step(is_quantised=True)), (gan, gan.step)
    ]  # fmt: skip
    for stage, run in stages:
        step = train_codec.fast_step(stage, partial(attempt, stage, run))
        assert not step.has_failed
        assert stage.speaker is None
        assert float(step()["speaker"]) == 0
    gan.measure()


@pytest.mark.usefixtures("_own_modules")
def test_generated_files_have_teachers_network_and_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from recipes.mini_voice import eres2net, synthetic_inputs, talker_files, train_codec
    from recipes.mini_voice.settings import load_settings
    from recipes.mini_voice.synthesize import Teacher
    from vivace.text.tokenizer import TextTokenizer

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.path", [*sys.path])
    out = tmp_path / "carry"
    monkeypatch.setattr("sys.argv", ["synthetic_inputs", "--smoke", f"--out={out}", "--lines=5"])
    synthetic_inputs.main()
    for name in ("lines", "rare"):
        assert len(gzip.decompress((out / f"{name}.txt.gz").read_bytes()).splitlines()) == 5
    changes = ['data.speakers=["heart", "michael", "training_voices"]', "codec.num_quantizers=8"]
    settings = load_settings(True, changes)
    data = settings.data
    data.teacher, data.model = str(out / "hibari"), "none"
    data.kokoro, data.styles = str(out / "kokoro/kokoro_durations.onnx"), str(out / "kokoro")
    data.voices = str(out / "kokoro/voices.npz")
    for speaker in range(3):
        audio, labels = Teacher(data, speaker).read("A line.", seed=7)
        assert len(audio) == 960 * len(labels) > 0
        assert np.abs(audio).max() > 1000
    vector = eres2net.load_packed(out / "eres2net")(torch.zeros(1, 30, eres2net.NUM_MELS))
    assert vector.shape == (1, eres2net.WIDTH)
    assert train_codec.restore(train_codec.build(settings), out) == 6
    tokenizer = TextTokenizer.from_folder(Path(settings.tokenizer.folder))
    talker_files.load(talker_files.build(settings, tokenizer), out)
