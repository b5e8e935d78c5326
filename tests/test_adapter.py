"""Adapter files: written, read, merged, and refused with a reason."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.tiny import Tiny
from vivace import TTS
from vivace.adapter import (
    FORMAT,
    Adapter,
    AdapterInfo,
    free_speaker_ids,
    lora_weight,
    with_speakers,
)
from vivace.errors import AdapterError
from vivace.model.quantized_layers import quantized_layers

LoadTiny = Callable[[str], Tiny]
Q_PROJ = "talker.model.layers.0.self_attn.q_proj.weight"


def make_adapter(tiny: Tiny, *, size: float = 0.5, **changes: object) -> Adapter:
    config = tiny.checkpoint.config
    weight = tiny.model.get_parameter(Q_PROJ)
    generator = torch.Generator().manual_seed(1)
    info = AdapterInfo(
        name="me",
        base="tiny",
        base_digest=tiny.checkpoint.digest(),
        rank=2,
        scale=2.0,
        speakers=free_speaker_ids(config, ["me"]),
        licence="CC0",
        consent="the speaker agreed",
    )
    return Adapter(
        info=dataclasses.replace(info, **changes),  # type: ignore[arg-type]
        pairs={
            Q_PROJ: (
                torch.randn(2, weight.shape[1], generator=generator),
                size * torch.randn(weight.shape[0], 2, generator=generator),
            )
        },
        vectors={"me": torch.randn(config.talker_config.hidden_size, generator=generator)},
    )


@pytest.fixture
def path(tiny: LoadTiny, tmp_path: Path) -> Path:
    made = tmp_path / "me.safetensors"
    make_adapter(tiny("base")).save(made)
    return made


def test_saved_adapter_is_read_back(tiny: LoadTiny, path: Path) -> None:
    adapter, expected = Adapter.load(path), make_adapter(tiny("base"))
    assert adapter.info == expected.info
    assert torch.equal(adapter.vectors["me"], expected.vectors["me"])
    assert all(map(torch.equal, adapter.pairs[Q_PROJ], expected.pairs[Q_PROJ]))


def test_loaded_adapter_is_the_default_voice_of_its_base(tiny: LoadTiny, path: Path) -> None:
    folder = tiny("base").checkpoint.folder
    with TTS.load(folder, device="cpu", adapter=path) as tts:
        assert (tts.model_type, tts.speakers) == ("custom_voice", ["me"])
        spoken = tts.speak("Hello.", max_frames=6, temperature=0)
        named = tts.speak("Hello.", voice="me", max_frames=6, temperature=0)
    assert spoken.codes.tolist() == named.codes.tolist()
    with TTS.load(folder, device="cpu") as tts:
        assert tts.model_type == "base"
        vector = make_adapter(tiny("base")).vectors["me"].numpy()
        from vivace import Voice

        voice = Voice(name="me", speaker=vector)
        plain = tts.speak(
            "Hello.", voice=voice, max_frames=6, temperature=0, text_layout="whole", trim=False
        )
    assert plain.codes.tolist() != spoken.codes.tolist()  # the weights differ


def test_adapter_is_merged_before_weights_are_quantized(tiny: LoadTiny, path: Path) -> None:
    checkpoint, adapter = tiny("base").checkpoint, Adapter.load(path)
    cpu, name = torch.device("cpu"), "talker.model.layers.0.self_attn.qkv_proj"
    merged, plain = (
        dict(quantized_layers(checkpoint.load_model(cpu, torch.float32, "int8", change)))[name]
        for change in (adapter.apply, None)
    )
    assert not torch.equal(merged.weight, plain.weight)
    with TTS.load(checkpoint.folder, device="cpu", adapter=path, weights="int8") as tts:
        assert tts.speak("Hello.", max_frames=6).codes.shape[1] == 16


def test_adapter_without_change_speaks_like_the_speaker_vector(
    tiny: LoadTiny, tmp_path: Path
) -> None:
    from vivace import Voice

    loaded = tiny("base")
    adapter = make_adapter(loaded, size=0.0)
    adapter.save(tmp_path / "same.safetensors")
    options: dict[str, Any] = {
        "max_frames": 6,
        "temperature": 0,
        "text_layout": "whole",
        "trim": False,
    }
    with TTS.load(
        loaded.checkpoint.folder, device="cpu", adapter=tmp_path / "same.safetensors"
    ) as tts:
        spoken = tts.speak("Hello.", **options)
    voice = Voice(name="me", speaker=adapter.vectors["me"].numpy())
    with TTS.load(loaded.checkpoint.folder, device="cpu") as tts:
        expected = tts.speak("Hello.", voice=voice, **options)
    assert spoken.codes.tolist() == expected.codes.tolist()


def test_adapter_of_another_base_is_refused(tiny: LoadTiny, path: Path) -> None:
    with pytest.raises(AdapterError, match=rf"{path.name}: the adapter .* was trained for tiny"):
        TTS.load(tiny("base_projected").checkpoint.folder, device="cpu", adapter=path)


def test_digest_changes_with_any_row_that_lora_changes(tiny: LoadTiny, tmp_path: Path) -> None:
    from vivace.finetune.output import write_merged

    loaded = tiny("base")
    write_merged(loaded.checkpoint, make_adapter(loaded), tmp_path / "merged")
    from vivace.checkpoint import Checkpoint

    assert Checkpoint.open(tmp_path / "merged").digest() != loaded.checkpoint.digest()


def test_digest_depends_on_names_and_first_rows_without_the_speaker_encoder(
    tiny: LoadTiny, tmp_path: Path
) -> None:
    """Adapter files contain the digest. If its value changed, no adapter would load."""
    tensors = {
        "talker.b": torch.arange(6.0).reshape(3, 2),
        "talker.a": torch.ones(4, dtype=torch.bfloat16),
        "speaker_encoder.fc.bias": torch.zeros(2),
    }
    checkpoint = dataclasses.replace(tiny("base").checkpoint, folder=tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    rows = b"talker.a" + b"\x80\x3f" + b"talker.b" + struct.pack("<2f", 0, 1)
    assert checkpoint.digest() == hashlib.sha256(rows).hexdigest()


def test_adapter_of_a_quantized_checkpoint_is_refused(few_int4: Path, path: Path) -> None:
    for options in ({"adapter": path}, {"adapters": {"a": path}}):
        with pytest.raises(AdapterError, match="is quantized; adapters need the original weights"):
            TTS.load(few_int4, device="cpu", **options)


def test_missing_and_damaged_files_raise(path: Path, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="no such file"):
        Adapter.load(tmp_path / "gone.safetensors")
    with pytest.raises(AdapterError, match="folder"):
        Adapter.load(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(AdapterError, match="damaged"):
        Adapter.load(path)


GOOD = {"name": "me", "base": "b", "base_digest": "d", "rank": 1, "scale": 1.0}


@pytest.mark.parametrize(
    ("tensors", "info", "reason"),
    [
        ({"weight.x": torch.ones(2)}, None, "not an adapter"),
        ({}, "[]", "cannot be read"),
        ({}, json.dumps({**GOOD, "rank": "big"}), "rank must be int"),
        ({}, json.dumps({**GOOD, "rank": -1}), "rank -1"),
        ({}, json.dumps({**GOOD, "rank": True}), "rank must be int, not True"),
        ({}, json.dumps({**GOOD, "scale": float("-inf")}), "scale -inf are not valid"),
        ({}, json.dumps({**GOOD, "scale": float("nan")}), "scale nan are not valid"),
        ({}, json.dumps({**GOOD, "unknown": 1}), "cannot be read"),
        ({}, json.dumps({**GOOD, "name": "x" * 5000}), "more than 2,000"),
        ({}, json.dumps({**GOOD, "speakers": {"me": "3"}}), "names to ids"),
        ({}, json.dumps({**GOOD, "speakers": {"me": 3}}), "different speakers"),
        ({"speaker.me": torch.ones(2)}, json.dumps(GOOD), "different speakers"),
        ({"other": torch.ones(2)}, json.dumps(GOOD), "unknown tensor"),
        ({"lora.x.a": torch.ones(2, 2)}, json.dumps(GOOD), "incomplete"),
        ({f"lora.x.{half}": torch.ones(2, 2) for half in "abc"}, json.dumps(GOOD), "incomplete"),
        (
            {"lora.x.a": torch.ones(2), "lora.x.b": torch.ones(4, 2)},
            json.dumps(GOOD),
            "do not fit",
        ),
        (
            {"lora.x.a": torch.ones(2, 3), "lora.x.b": torch.ones(4, 3)},
            json.dumps(GOOD),
            "do not fit",
        ),
        ({"weight.x": torch.full((2,), torch.nan)}, json.dumps(GOOD), "not finite"),
        ({"weight.x": torch.ones(2, dtype=torch.int64)}, json.dumps(GOOD), "int64 values"),
    ],
)
def test_invalid_adapter_is_refused_with_a_reason(
    tmp_path: Path, tensors: dict[str, torch.Tensor], info: str | None, reason: str
) -> None:
    path = tmp_path / "bad.safetensors"
    metadata = {} if info is None else {"format": FORMAT, "info": info}
    save_file(tensors, path, metadata)
    with pytest.raises(AdapterError, match=reason):
        Adapter.load(path)


def test_adapter_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "later.safetensors"
    save_file({}, path, {"format": "vivace.adapter/2", "info": json.dumps(GOOD)})
    with pytest.raises(AdapterError, match=r"format 'vivace\.adapter/2', not 'viv"):
        Adapter.load(path)


def test_tensors_of_an_adapter_become_float32(tmp_path: Path) -> None:
    path = tmp_path / "half.safetensors"
    stored = {"weight.x": torch.ones(2, dtype=torch.bfloat16)}
    save_file(stored, path, {"format": FORMAT, "info": json.dumps(GOOD)})
    assert Adapter.load(path).weights["x"].dtype == torch.float32


def test_adapter_that_cannot_be_written_is_named(tiny: LoadTiny, path: Path) -> None:
    with pytest.raises(AdapterError, match=rf"cannot write .*{path.name}"):
        make_adapter(tiny("base")).save(path / "other")


def test_merged_weight_is_rounded_once() -> None:
    """In bfloat16, a change of just above half a unit is lost if it is rounded by itself."""
    a, b = torch.ones(1, 1), torch.full((1, 1), 2**-8 + 2**-20)
    merged = lora_weight(torch.ones(1, 1, dtype=torch.bfloat16), a, b, 1.0)
    assert merged.dtype == torch.bfloat16
    assert float(merged) == 1 + 2**-7


def test_adapter_with_other_shapes_is_refused(tiny: LoadTiny) -> None:
    loaded = tiny("base")
    adapter = make_adapter(loaded)
    model = loaded.checkpoint.load_plain_model(torch.device("cpu"), torch.float32)
    a, b = adapter.pairs[Q_PROJ]
    for pairs, reason in (
        ({"talker.gone.weight": (a, b)}, "does not have"),
        ({Q_PROJ: (a[:, :-1], b)}, "of shape"),
    ):
        with pytest.raises(AdapterError, match=reason):
            dataclasses.replace(adapter, pairs=pairs).apply(model)
    with pytest.raises(AdapterError, match="width"):
        dataclasses.replace(adapter, vectors={"me": torch.ones(3)}).apply(model)
    with pytest.raises(AdapterError, match=r"of shape \[1\]"):
        dataclasses.replace(adapter, weights={Q_PROJ: torch.ones(1)}).apply(model)


def test_speaker_ids_are_free_and_bounded(tiny: LoadTiny) -> None:
    config = tiny("custom_voice").checkpoint.config
    ids = free_speaker_ids(config, ["ann", "bob"])
    assert len(set(ids.values())) == 2
    assert not set(ids.values()) & set(config.talker_config.spk_id.values())
    assert ids["ann"] == config.talker_config.vocab_size - 72  # 3,000 in released checkpoints
    with pytest.raises(AdapterError, match="has a speaker 'Ryan'"):
        free_speaker_ids(config, ["Ryan"])
    with pytest.raises(AdapterError, match="room for"):
        free_speaker_ids(config, [f"speaker{n}" for n in range(100)])
    with pytest.raises(AdapterError, match="not free"):
        with_speakers(config, {"me": 3})


def test_new_speaker_ids_are_not_those_of_other_codes(tiny: LoadTiny) -> None:
    config = tiny("custom_voice").checkpoint.config
    first = config.talker_config.vocab_size - 72
    talker = dataclasses.replace(
        config.talker_config,
        spk_id={"Ada": first},
        codec_language_id={"english": first + 1},
        codec_pad_id=first + 2,
    )
    changed = dataclasses.replace(config, talker_config=talker)
    assert free_speaker_ids(changed, ["ann"]) == {"ann": first + 3}
    with pytest.raises(AdapterError, match="has a speaker 'ada'"):
        free_speaker_ids(changed, ["ada"])
    predictor = dataclasses.replace(talker.code_predictor_config, vocab_size=first + 9)
    talker = dataclasses.replace(talker, code_predictor_config=predictor)
    changed = dataclasses.replace(config, talker_config=talker)
    assert free_speaker_ids(changed, ["ann"]) == {"ann": first + 9}


def test_base_with_new_speakers_does_not_clone(tiny: LoadTiny) -> None:
    config = tiny("base").checkpoint.config
    assert config.can_clone
    assert not with_speakers(config, free_speaker_ids(config, ["me"])).can_clone


def test_other_speakers_of_the_base_stay(tiny: LoadTiny) -> None:
    config = tiny("custom_voice").checkpoint.config
    extended = with_speakers(config, free_speaker_ids(config, ["me"]))
    names = list(extended.talker_config.spk_id)
    assert names == ["me", *config.talker_config.spk_id]
    assert extended.talker_config.spk_is_dialect["me"] is False


def test_merged_checkpoint_keeps_the_notes_of_its_speakers(tiny: LoadTiny, tmp_path: Path) -> None:
    from vivace.checkpoint import Checkpoint
    from vivace.finetune.output import write_merged

    loaded = tiny("base")
    write_merged(loaded.checkpoint, make_adapter(loaded, consent=""), tmp_path / "merged")
    assert Checkpoint.open(tmp_path / "merged").speaker_notes == {"me": {"licence": "CC0"}}
    (tmp_path / "merged" / "finetuned.json").write_text("[")  # of another tool
    assert Checkpoint.open(tmp_path / "merged").speaker_notes == {}


def test_commands_take_an_adapter(
    tiny: LoadTiny, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from vivace.cli.main import main

    model = ["--model", str(tiny("base").checkpoint.folder), "--adapter", str(path)]
    assert main(["speakers", "--json", *model]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["speakers"] == ["me"]
    assert report["notes"] == {"me": {"licence": "CC0", "consent": "the speaker agreed"}}
    assert main(["speakers", *model]) == 0
    assert "consent of me  the speaker agreed" in capsys.readouterr().out
    output = tmp_path / "hello.wav"
    say = ["say", "Hello.", "--voice", "me", "--max-frames", "5", "-o", str(output), "-q"]
    assert main([*say, "--device", "cpu", *model]) == 0
    assert b"voice: fine-tuned;" in output.read_bytes()
    assert main([*say, "--force", "--device", "cpu", "--adapter", str(path)]) == 1  # another base
    assert "was trained for tiny" in capsys.readouterr().err
