"""A text-to-speech node for ComfyUI: copy this file to `ComfyUI/custom_nodes/` and install vivace.

Returns ComfyUI's AUDIO, a waveform [batch, channels, samples] and its rate, for Save Audio, Preview
Audio and other audio nodes. The model is loaded once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from vivace import TTS


@lru_cache(maxsize=1)
def load(model: str) -> TTS:
    return TTS.load(model)


class VivaceSpeak:
    """Text to speech."""

    CATEGORY = "audio/vivace"
    FUNCTION = "speak"
    RETURN_TYPES = ("AUDIO",)
    RETURN_NAMES = ("audio",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "text": ("STRING", {"multiline": True, "default": "Hello from ComfyUI."}),
                "model": ("STRING", {"default": "mini"}),
            },
            "optional": {
                "voice": ("STRING", {"default": ""}),
                "language": ("STRING", {"default": "auto"}),
                "instruct": ("STRING", {"multiline": True, "default": ""}),
                "speed": ("FLOAT", {"default": 1.0, "min": 0.25, "max": 4.0, "step": 0.05}),
                "seed": ("INT", {"default": 0, "min": 0, "max": 2**53}),
                "reference": ("AUDIO",),
            },
        }

    def speak(
        self,
        text: str,
        model: str,
        voice: str = "",
        language: str = "auto",
        instruct: str = "",
        speed: float = 1.0,
        seed: int = 0,
        reference: dict[str, Any] | None = None,
    ) -> tuple[dict[str, Any]]:
        tts = load(model)
        chosen: Any = voice or None
        if reference is not None:  # a recording to clone, with a Base model
            mono = reference["waveform"][0].mean(0).cpu().numpy()
            chosen = tts.clone((mono, int(reference["sample_rate"])))
        audio = tts.speak(
            text, voice=chosen, language=language, instruct=instruct or None, speed=speed, seed=seed
        )
        waveform = torch.from_numpy(audio.samples)[None, None]
        return ({"waveform": waveform, "sample_rate": audio.sample_rate},)


NODE_CLASS_MAPPINGS = {"VivaceSpeak": VivaceSpeak}
NODE_DISPLAY_NAME_MAPPINGS = {"VivaceSpeak": "Speak (Vivace)"}
