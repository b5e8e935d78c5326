"""The classes people already use, over TTS: change one import and nothing else.

`Qwen3TTSModel` is the official package's; `FasterQwen3TTS` and `Qwen3TTSCudaGraphs` are those of
faster-qwen3-tts and of its first release. docs/switching.md says what differs.
"""

from vivace.compat.faster import FasterQwen3TTS, Qwen3TTSCudaGraphs
from vivace.compat.official import Qwen3TTSModel, VoiceClonePromptItem

__all__ = ["FasterQwen3TTS", "Qwen3TTSCudaGraphs", "Qwen3TTSModel", "VoiceClonePromptItem"]
