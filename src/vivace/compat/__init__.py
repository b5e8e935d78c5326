"""Drop-in classes for programs written for other Qwen3-TTS packages: change only the import.

- `Qwen3TTSModel` and `Qwen3TTSTokenizer` replace those of the official package.
- `FasterQwen3TTS` and `Qwen3TTSCudaGraphs` replace those of faster-qwen3-tts and of its first
  release.
- `install()` redirects `import faster_qwen3_tts` for programs that cannot be changed.

docs/switching.md lists the differences.
"""

from vivace.compat.faster import FasterQwen3TTS, Qwen3TTSCudaGraphs
from vivace.compat.official import Qwen3TTSModel
from vivace.compat.prompts import VoiceClonePromptItem
from vivace.compat.shim import install, uninstall
from vivace.compat.tokenizer import Qwen3TTSTokenizer

__all__ = [
    "FasterQwen3TTS",
    "Qwen3TTSCudaGraphs",
    "Qwen3TTSModel",
    "Qwen3TTSTokenizer",
    "VoiceClonePromptItem",
    "install",
    "uninstall",
]
