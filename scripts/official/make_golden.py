"""Write tests/golden: what the official package makes of the tiny checkpoints.

    python scripts/make_tiny_checkpoints.py /opt/tiny                # with vivace on the path
    /opt/venvs/official/bin/python scripts/official/make_golden.py --checkpoints /opt/tiny

Runs in the environment of scripts/official/README.md, on a CPU, in a few minutes. All kinds of
golden files are listed and explained in tests/golden/README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from cases import CALLS, GREEDY, MAX_NEW_TOKENS, REFERENCES, TEMPLATE_TEXTS, TOKENIZER_TEXTS
from cases import Call, Item, Reference
from recorder import Recorder
from safetensors.torch import load_file, save_file
from torch import Tensor
from waves import synthetic_wave

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "src")]

from make_tiny_checkpoints import fingerprint  # noqa: E402

from benchmarks.official import import_official  # noqa: E402

qwen_tts = import_official()
transformers.utils.logging.set_verbosity_error()

MIN_MARGIN = 2e-5  # a greedy choice closer than this could fall otherwise on another machine
WAVEFORM_STRIDE = 61
Tensors = dict[str, Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "golden")
    parser.add_argument("--only", choices=MAKERS, nargs="*", default=list(MAKERS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for kind in arguments.only:
        MAKERS[kind](arguments.checkpoints, arguments.output)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The official model, after checking that each of its tensors came from the files."""
    tts = qwen_tts.Qwen3TTSModel.from_pretrained(str(folder), dtype=dtype)
    for part, model in (("", tts.model), ("speech_tokenizer", tts.model.speech_tokenizer.model)):
        stored = load_file(folder / part / "model.safetensors")
        assert stored.keys() == model.state_dict().keys()
    return tts


def save(path: Path, tensors: Tensors, description: Any = None) -> None:
    """Write tensors beside a JSON file of the same name that says what they are of."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, f"{path}.safetensors")
    if description is not None:
        write_json(path, description)
    size = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}.*"))
    print(f"{path.name}: {len(tensors)} tensors, {size / 1e3:.0f} kB")


def write_json(path: Path, value: Any) -> None:
    """One line for each entry of the lists at the top."""
    lines = [f" {json.dumps(key)}: {to_lines(entry)}" for key, entry in value.items()]
    path.with_suffix(".json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def to_lines(entry: Any) -> str:
    if not isinstance(entry, list) or not entry or isinstance(entry[0], int):
        return json.dumps(entry, ensure_ascii=False)
    return "[\n  " + ",\n  ".join(json.dumps(e, ensure_ascii=False) for e in entry) + "\n ]"


# --- Codes ------------------------------------------------------------------------------------


def make_codes(checkpoints: Path, output: Path) -> None:
    for model in CALLS:
        make_codes_of(model, checkpoints / model, output)


def make_codes_of(model: str, folder: Path, output: Path) -> None:
    tts = load(folder)
    recorder = Recorder(tts)
    tensors: Tensors = {}
    prompts = make_clone_prompts(tts, tensors) if model.startswith("base") else {}
    calls = []
    for call in CALLS[model]:
        waveforms = speak(tts, call, prompts)
        calls.append(describe_call(call, recorder, waveforms))
        tensors |= keep_tensors(call, recorder, waveforms, live_ids(tts))
        check_margins(model, calls[-1])
    description = {
        "model": model,
        "references": [
            {"name": name, "seconds": reference.seconds, "text": reference.text}
            for name, reference in REFERENCES.items()
            if prompts
        ],
        "calls": calls,
    }
    save(output / f"codes_{model}", tensors, description)


def make_clone_prompts(tts: Any, tensors: Tensors) -> dict[str, Any]:
    """The official prompt items of each reference, with and without codes."""
    prompts = {}
    for name, reference in REFERENCES.items():
        for x_vector_only in (False, True):
            prompts[name, x_vector_only] = make_clone_prompt(tts, reference, x_vector_only)
        item = prompts[name, False]
        tensors[f"{name}.ref_code"] = item.ref_code.to(torch.uint8)
        tensors[f"{name}.ref_spk_embedding"] = item.ref_spk_embedding
    return prompts


def make_clone_prompt(tts: Any, reference: Reference, x_vector_only: bool) -> Any:
    audio = (synthetic_wave(reference.seconds), 24000)
    [item] = tts.create_voice_clone_prompt(audio, reference.text, x_vector_only)
    return item


def speak(tts: Any, call: Call, prompts: dict[str, Any]) -> list[np.ndarray]:
    """Make the call through the public method of the model's type."""
    items = call.items
    arguments: dict[str, Any] = {
        "text": [item.text for item in items],
        "language": [item.language for item in items],
        "non_streaming_mode": call.non_streaming_mode,
        **{"max_new_tokens": MAX_NEW_TOKENS, **GREEDY, **call.settings},
    }
    kind = tts.model.tts_model_type
    if kind == "base":
        prompt = [prompts[item.reference, item.x_vector_only] for item in items]
        waveforms, _ = tts.generate_voice_clone(voice_clone_prompt=prompt, **arguments)
    elif kind == "voice_design":
        instructs = [item.instruct for item in items]
        waveforms, _ = tts.generate_voice_design(instruct=instructs, **arguments)
    else:
        arguments["instruct"] = [item.instruct for item in items]
        speakers = [item.speaker for item in items]
        waveforms, _ = tts.generate_custom_voice(speaker=speakers, **arguments)
    return waveforms


def describe_call(call: Call, recorder: Recorder, waveforms: list[np.ndarray]) -> dict[str, Any]:
    description = call.to_json()
    limit = description["settings"]["max_new_tokens"]
    mask = recorder.talker_inputs["attention_mask"]
    for index, item in enumerate(description["items"]):
        num_frames = len(recorder.codes[index])
        item |= official_ids(recorder.inputs, index, call.items[index])
        item["num_prefill_rows"] = int(mask[index].sum())
        item["num_frames"] = num_frames
        item["finish"] = "length" if num_frames == limit - 1 else "eos"
        item["num_samples"] = len(waveforms[index])
        item["margin"] = float(f"{recorder.margin(index):.2e}")
    description["num_trailing_rows"] = recorder.talker_inputs["trailing_text_hidden"].shape[1]
    return description


def official_ids(inputs: dict[str, Any], index: int, item: Item) -> dict[str, list[int]]:
    """The token ids that the official code cut from its three templates."""
    ids = {}
    for key in ("input_ids", "instruct_ids", "ref_ids"):
        tensors = inputs.get(key)
        if tensors is not None and tensors[index] is not None and not (
            key == "ref_ids" and item.x_vector_only
        ):
            ids[key] = tensors[index][0].tolist()
    return ids


def keep_tensors(
    call: Call, recorder: Recorder, waveforms: list[np.ndarray], live: list[int]
) -> Tensors:
    kept = {}
    for index in range(len(call.items)):
        key = f"{call.name}.{index}"
        kept[f"{key}.codes"] = recorder.codes[index].to(torch.uint8)
        if call.keeps_rows:
            kept[f"{key}.prefill_rows"] = recorder.rows[0][index]
            kept[f"{key}.trailing_rows"] = recorder.talker_inputs["trailing_text_hidden"][index]
            kept[f"{key}.prefill_logits"] = recorder.logits[index, 0, live]
        if call.keeps_waveform:
            kept[f"{key}.waveform"] = torch.tensor(waveforms[index][::WAVEFORM_STRIDE])
    return kept


def check_margins(model: str, call: dict[str, Any]) -> None:
    margin = min(item["margin"] for item in call["items"])
    ends = ", ".join(f"{item['num_frames']} {item['finish']}" for item in call["items"])
    print(f"  {model}/{call['name']}: {ends}; margin {margin:.1e}")
    if margin < MIN_MARGIN:
        print("  ^ too close: another machine may choose otherwise; change the text")


def live_ids(tts: Any) -> list[int]:
    """The columns of the talker's logits that can be chosen: the codes, then EOS."""
    config = tts.model.config.talker_config
    return [*range(config.vocab_size - 1024), config.codec_eos_token_id]


# --- Sampling ---------------------------------------------------------------------------------

TALKER_SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"do_sample": False},
    "penalty_off": {"repetition_penalty": 1.0},
    "penalty_strong": {"repetition_penalty": 1.5},
    "temperature_one": {"temperature": 1.0},
    "temperature_low": {"temperature": 0.3},
    "temperature_high": {"temperature": 2.0},
    "top_k_off": {"top_k": 0},
    "top_k_one": {"top_k": 1},
    "top_k_few": {"top_k": 5},
    "top_k_beyond": {"top_k": 5000},
    "top_p": {"top_p": 0.9},
    "top_p_alone": {"top_p": 0.5, "top_k": 0},
    "top_p_tiny": {"top_p": 0.01},
    "all": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.2},
}
PREDICTOR_SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"dosample": False},
    "temperature_one": {"temperature": 1.0},
    "top_k_off": {"top_k": 0},
    "top_k_few": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "all": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
}
HISTORY_LENGTHS = (0, 1, 2, 40)


class ProcessorsFoundError(Exception):
    """Carries the logits processors out of generate()."""


def make_sampling(checkpoints: Path, output: Path) -> None:
    """The probabilities that generate() would draw from, given logits and history."""
    tts = load(checkpoints / "custom_voice")
    live = live_ids(tts)
    logits = make_logits(tts.model.config.talker_config.vocab_size, eos=live[-1])
    history = torch.randint(0, 64, (len(logits), max(HISTORY_LENGTHS)), generator=seeded(3))
    tensors: Tensors = {"talker.logits": logits, "talker.history": history.to(torch.uint8)}
    for name, settings in TALKER_SETTINGS.items():
        processors = find_processors(tts, type(tts.model.talker), settings)
        for length in HISTORY_LENGTHS:
            chances = processors(history[:, :length], logits.clone()).softmax(-1)
            assert chances.sum(-1).allclose(chances[:, live].sum(-1))
            tensors[f"talker.{name}.{length}"] = chances[:, live]

    logits = make_logits(64, eos=None)
    tensors["predictor.logits"] = logits
    for name, settings in PREDICTOR_SETTINGS.items():
        settings = {f"subtalker_{key}": value for key, value in settings.items()}
        processors = find_processors(tts, type(tts.model.talker.code_predictor), settings)
        history = torch.zeros(len(logits), 3, dtype=torch.long)  # must not matter
        tensors[f"predictor.{name}"] = processors(history, logits.clone()).softmax(-1)
    description = {
        "talker_settings": TALKER_SETTINGS,
        "predictor_settings": PREDICTOR_SETTINGS,
        "history_lengths": HISTORY_LENGTHS,
        "columns": live,
    }
    save(output / "sampling", tensors, description)


def make_logits(vocab_size: int, eos: int | None) -> Tensor:
    """Two rows of plain noise, two full of ties, and one whose best is EOS or the last code."""
    logits = 3 * torch.randn(5, vocab_size, generator=seeded(vocab_size))
    logits[2:4] = (2 * logits[2:4]).round() / 2
    logits[4, vocab_size - 1 if eos is None else eos] = 20.0
    return logits


def find_processors(tts: Any, owner: type, settings: dict[str, Any]) -> Any:
    """The logits processors that generate() builds for the talker or for the predictor."""

    def sample(model: Any, input_ids: Tensor, logits_processor: Any, **kwargs: Any) -> None:
        raise ProcessorsFoundError(logits_processor)

    with mock.patch.object(owner, "_sample", sample):
        try:
            tts.generate_custom_voice("a", "ryan", max_new_tokens=4, **settings)
        except ProcessorsFoundError as found:
            return found.args[0]
    raise AssertionError("generate() did not sample")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- Codec ------------------------------------------------------------------------------------

WAVES = {"long": 3.3, "short": 0.61, "beyond_window": 13.0}  # seconds; Mimi's window is 10 s
RATES = (8000, 16000, 22050, 44100, 48000)


def make_codec(checkpoints: Path, output: Path) -> None:
    codec = load(checkpoints / "base").model.speech_tokenizer
    tensors = {}
    codes = torch.randint(0, 64, (330, 16), generator=seeded(5))
    tensors["decode.codes"] = codes.to(torch.uint8)
    for num_frames in (1, 7, 100, 300, 330):
        [wave], _ = codec.decode([{"audio_codes": codes[:num_frames]}])
        tensors |= keep_wave(f"decode.{num_frames}", torch.tensor(wave))
    for name, seconds in WAVES.items():
        [found] = codec.encode(synthetic_wave(seconds), sr=24000).audio_codes
        tensors[f"encode.{name}"] = found.to(torch.uint8)
    check_codes_are_stable(codec, tensors)
    save(output / "codec", tensors)


def keep_wave(name: str, wave: Tensor) -> Tensors:
    """Every n-th sample, its start, its end, and the seam after chunk 1 (frame 300)."""
    seam = 300 * 1920
    kept = {"strided": wave[:: max(1, len(wave) // 1920)], "head": wave[:480], "tail": wave[-480:]}
    if len(wave) > seam:
        kept["seam"] = wave[seam - 240 : seam + 240]
    return {f"{name}.{part}": samples.clone() for part, samples in kept.items()}


def check_codes_are_stable(codec: Any, tensors: Tensors) -> None:
    """Codes that float64 or a breath of noise would change are no golden values."""
    for name, seconds in WAVES.items():
        wave = synthetic_wave(seconds)
        breath = np.random.RandomState(1).uniform(-1e-6, 1e-6, len(wave)).astype(np.float32)
        [noisy] = codec.encode(wave + breath, sr=24000).audio_codes
        codec.model.double()
        [exact] = codec.encode(wave, sr=24000).audio_codes
        codec.model.float()
        assert torch.equal(noisy, tensors[f"encode.{name}"].long()), name
        assert torch.equal(exact, tensors[f"encode.{name}"].long()), name


def make_resample(checkpoints: Path, output: Path) -> None:
    import librosa

    tensors = {}
    for rate in RATES:
        wave = librosa.resample(y=synthetic_wave(0.5, rate), orig_sr=rate, target_sr=24000)
        tensors |= keep_wave(f"{rate}", torch.tensor(wave))
        tensors[f"{rate}.num_samples"] = torch.tensor([len(wave)])
    save(output / "resample", tensors)


# --- Speaker ----------------------------------------------------------------------------------


def make_speaker(checkpoints: Path, output: Path) -> None:
    """X-vectors and, of every 16th frame, the mel spectrogram in front of them."""
    tensors = {}
    for model in ("base", "base_projected"):
        for dtype in (torch.float32, torch.bfloat16):
            tts = load(checkpoints / model, dtype)
            for name, seconds in WAVES.items():
                vector = tts.model.extract_speaker_embedding(synthetic_wave(seconds), 24000)
                tensors[f"{model}.{name}.{str(dtype).removeprefix('torch.')}"] = vector
    for name, seconds in WAVES.items():
        tensors[f"mel.{name}"] = mel_of(synthetic_wave(seconds))[:: 16 if seconds < 10 else 64]
    save(output / "speaker", tensors)


def mel_of(wave: np.ndarray) -> Tensor:
    """Frames [n, 128], by the official function with the arguments of its only caller."""
    official = sys.modules["qwen_tts.core.models.modeling_qwen3_tts"].mel_spectrogram
    mel = official(
        torch.from_numpy(wave)[None],
        n_fft=1024, num_mels=128, sampling_rate=24000, hop_size=256, win_size=1024,
        fmin=0, fmax=12000,
    )  # fmt: skip
    return mel[0].T


# --- bfloat16 ---------------------------------------------------------------------------------

BF16_CALLS = {"custom_voice": "plain_streaming", "base_projected": "icl_text_longer_streaming"}
BF16_FRAMES = 12


def make_bf16(checkpoints: Path, output: Path) -> None:
    tensors: Tensors = {}
    calls = []
    for model, name in BF16_CALLS.items():
        [call] = [call for call in CALLS[model] if call.name == name]
        call.settings["max_new_tokens"] = BF16_FRAMES + 1
        tts = load(checkpoints / model, torch.bfloat16)
        recorder = Recorder(tts)
        prompts = reference_prompts(output, model) if model.startswith("base") else {}
        waveforms = speak(tts, call, prompts)
        calls.append({"model": model, **describe_call(call, recorder, waveforms)})
        kept = step_by_step(recorder, live_ids(tts)) | in_one_pass(tts, recorder, live_ids(tts))
        tensors |= {f"{model}.{key}": tensor for key, tensor in kept.items()}
    attention = tts.model.talker.config._attn_implementation
    save(output / "bf16", tensors, {"attention": attention, "calls": calls})


def reference_prompts(output: Path, model: str) -> dict[str, Any]:
    """The float32 prompts of make_codes: a reference encoded in bfloat16 has other codes."""
    stored = load_file(output / f"codes_{model}.safetensors")
    return {
        (name, False): qwen_tts.VoiceClonePromptItem(
            ref_code=stored[f"{name}.ref_code"].long(),
            ref_spk_embedding=stored[f"{name}.ref_spk_embedding"],
            x_vector_only_mode=False,
            icl_mode=True,
            ref_text=reference.text,
        )
        for name, reference in REFERENCES.items()
    }


def step_by_step(recorder: Recorder, live: list[int]) -> Tensors:
    """What generate() saw, with its cache: one prefill, then a step for every frame."""
    num_frames = len(recorder.codes[0])
    bf16 = torch.bfloat16  # generate() returns logits as float32; the model made them in bfloat16
    return {
        "codes": recorder.codes[0].to(torch.uint8),
        "prefill_rows": recorder.rows[0][0],
        "frame_rows": torch.cat(recorder.rows[1:], dim=1)[0],
        "hidden": recorder.hidden[0, :num_frames],
        "logits": recorder.logits[0][:, live].to(bf16),
        "predictor_logits": torch.cat(recorder.predictor_logits[:num_frames]).to(bf16),
    }


@torch.inference_mode()
def in_one_pass(tts: Any, recorder: Recorder, live: list[int]) -> Tensors:
    """The same rows and frames, teacher-forced: one pass of the talker, one of the predictor."""
    talker = tts.model.talker
    codes, rows = recorder.codes[0], torch.cat(recorder.rows, dim=1)
    hidden = talker.model(inputs_embeds=rows).last_hidden_state
    given = recorder.hidden[0, : len(codes)]
    predictor_logits, _ = talker.forward_sub_talker_finetune(codes, given)
    return {
        "one_pass.hidden": hidden[0],
        "one_pass.logits": talker.codec_head(hidden)[0][:, live],
        "one_pass.predictor_logits": predictor_logits,
    }


# --- Tokenizer and checkpoints ----------------------------------------------------------------


def make_tokens(checkpoints: Path, output: Path) -> None:
    tts = load(checkpoints / "custom_voice")

    def ids(text: str) -> list[int]:
        return tts.processor(text=text, return_tensors="pt")["input_ids"][0].long().tolist()

    template = tts._build_assistant_text
    value = {
        "texts": [{"text": text, "ids": ids(text)} for text in TOKENIZER_TEXTS],
        "templates": [{"text": text, "ids": ids(template(text))} for text in TEMPLATE_TEXTS],
    }
    write_json(output / "tokens", value)


def make_fingerprints(checkpoints: Path, output: Path) -> None:
    """So that a test can tell a wrong answer from other weights."""
    write_json(output / "checkpoints", {model: fingerprint(checkpoints / model) for model in CALLS})


MAKERS = {
    "checkpoints": make_fingerprints,
    "tokens": make_tokens,
    "codes": make_codes,
    "sampling": make_sampling,
    "codec": make_codec,
    "resample": make_resample,
    "speaker": make_speaker,
    "bf16": make_bf16,
}

if __name__ == "__main__":
    main()
