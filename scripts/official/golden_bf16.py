"""Golden logits in bfloat16, as generate() made them and teacher-forced in one pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from cases import CALLS, REFERENCES
from environment import Tensors, live_ids, load, qwen_tts, save
from golden_codes import ClonePrompts, describe_call, speak
from recorder import Recorder
from safetensors.torch import load_file

BF16_CALLS = {"custom_voice": "plain_streaming", "base_projected": "icl_text_longer_streaming"}
BF16_FRAMES = 8


def make_bf16(checkpoints: Path, output: Path) -> None:
    tensors: Tensors = {}
    calls = []
    for model, name in BF16_CALLS.items():
        [call] = [call for call in CALLS[model] if call.name == name]
        call = replace(call, settings={"max_new_tokens": BF16_FRAMES + 1})
        tts = load(checkpoints / model, torch.bfloat16)
        recorder = Recorder(tts)
        prompts = reference_prompts(output, model) if model.startswith("base") else {}
        waveforms = speak(tts, call, prompts)
        calls.append({"model": model, **describe_call(call, recorder, waveforms)})
        kept = step_by_step(recorder, live_ids(tts)) | in_one_pass(tts, recorder, live_ids(tts))
        tensors |= {f"{model}.{key}": tensor for key, tensor in kept.items()}
    attention = tts.model.talker.config._attn_implementation
    save(output / "bf16", tensors, {"attention": attention, "calls": calls})


def reference_prompts(output: Path, model: str) -> ClonePrompts:
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
    """The logits of generate(), with its cache: one prefill, then a step for every frame."""
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
