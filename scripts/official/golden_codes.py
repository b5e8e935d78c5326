"""Golden codes: every call of cases.py, through the official package's public methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import CALLS, DEFAULT_SETTINGS, REFERENCES, Call, Item, Reference
from environment import Tensors, live_ids, load, save
from recorder import MIN_MARGIN, Recorder
from waves import synthetic_wave

WAVEFORM_STRIDE = 61
ClonePrompts = dict[tuple[str | None, bool], Any]  # by reference, and whether without its codes


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


def make_clone_prompts(tts: Any, tensors: Tensors) -> ClonePrompts:
    """The official prompt items of each reference, with and without codes."""
    prompts: ClonePrompts = {}
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


def speak(tts: Any, call: Call, prompts: ClonePrompts) -> list[np.ndarray]:
    """Make the call through the public method of the model's type."""
    items = call.items
    arguments: dict[str, Any] = {
        "text": [item.text for item in items],
        "language": [item.language for item in items],
        "non_streaming_mode": call.non_streaming_mode,
    }
    arguments |= DEFAULT_SETTINGS | call.settings
    kind = tts.model.tts_model_type
    waveforms: list[np.ndarray]
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
    keys = ["input_ids", "instruct_ids"] + ([] if item.x_vector_only else ["ref_ids"])
    found = {key: inputs[key][index] for key in keys if inputs.get(key) is not None}
    return {key: ids[0].tolist() for key, ids in found.items() if ids is not None}


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
