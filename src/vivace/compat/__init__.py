"""The classes people already use, over TTS: change one import and nothing else.

`Qwen3TTSModel` and `Qwen3TTSTokenizer` are the official package's; `FasterQwen3TTS` and
`Qwen3TTSCudaGraphs` are those of faster-qwen3-tts and of its first release; `install()` answers
`import faster_qwen3_tts` for programs that cannot be changed. docs/switching.md says what differs.
"""

from vivace.compat.faster import FasterQwen3TTS
from vivace.compat.first_release import Qwen3TTSCudaGraphs
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
