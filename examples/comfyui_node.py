"""A text-to-speech node for ComfyUI, with voice cloning.

    pip install .                                       # in ComfyUI's environment
    cp examples/comfyui_node.py ComfyUI/custom_nodes/   # then restart ComfyUI

The node «Speak (Vivace)» returns AUDIO for Save Audio and Preview Audio. The model is loaded once.
"""

from functools import lru_cache
from typing import Any

import torch

from vivace import TTS

TEXT = {"multiline": True, "default": "Hello from ComfyUI."}
SPEED = {"default": 1.0, "min": 0.25, "max": 4.0, "step": 0.05}


@lru_cache(maxsize=1)
def load(model: str) -> TTS:
    return TTS.load(model)


class VivaceSpeak:
    """Text to speech."""

    CATEGORY, FUNCTION = "audio/vivace", "speak"
    RETURN_TYPES, RETURN_NAMES = ("AUDIO",), ("audio",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        required = {"text": ("STRING", TEXT), "model": ("STRING", {"default": "mini"})}
        optional = {
            "voice": ("STRING", {"default": ""}),
            "language": ("STRING", {"default": "auto"}),
            "instruct": ("STRING", {"multiline": True, "default": ""}),
            "speed": ("FLOAT", SPEED),
            "seed": ("INT", {"default": 0, "min": 0, "max": 2**53}),
            "reference": ("AUDIO",),  # a recording to clone, with a Base model
        }
        return {"required": required, "optional": optional}

    def speak(
        self, text: str, model: str, voice: Any = "", instruct: str = "", reference: Any = None,
        **options: Any,
    ) -> tuple[dict[str, Any]]:  # fmt: skip
        tts = load(model)
        if reference is not None:
            mono = reference["waveform"][0].mean(0).cpu().numpy()
            voice = tts.clone((mono, int(reference["sample_rate"])))
        audio = tts.speak(text, voice=voice or None, instruct=instruct or None, **options)
        waveform = torch.from_numpy(audio.samples)[None, None]  # [batch, channels, samples]
        return ({"waveform": waveform, "sample_rate": audio.sample_rate},)


NODE_CLASS_MAPPINGS = {"VivaceSpeak": VivaceSpeak}
NODE_DISPLAY_NAME_MAPPINGS = {"VivaceSpeak": "Speak (Vivace)"}
