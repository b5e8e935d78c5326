"""Golden waveforms of faster-qwen3-tts 0.5.4: clones with all options that change a prompt.

Run it separately in the environment of README.md, with faster-qwen3-tts installed without its
dependencies (`pip install --no-deps faster-qwen3-tts==0.5.4`):

    .venv-official/bin/python scripts/official/golden_faster.py tiny tests/golden

Its `parity_mode` needs no CUDA graphs and runs on a CPU once synchronising does nothing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from environment import load, save
from waves import synthetic_wave

STRIDE = 61
SECONDS, TEXT, TRANSCRIPT = 2.0, "Hello there.", "Words."
CALLS: dict[str, dict[str, Any]] = {
    "vector": {"xvec_only": True},
    "vector_without_silence": {"xvec_only": True, "append_silence": False},
    "vector_instruct": {"xvec_only": True, "instruct": "Whisper."},
    "vector_whole": {"xvec_only": True, "non_streaming_mode": True},
    "vector_any_language": {"xvec_only": True, "language": None},
    "context": {"ref_text": TRANSCRIPT},
    "context_without_silence": {"ref_text": TRANSCRIPT, "append_silence": False},
    "context_instruct": {"ref_text": TRANSCRIPT, "instruct": "Whisper."},
}
SETTINGS: dict[str, Any] = {"do_sample": False, "max_new_tokens": 20}


def main() -> None:
    checkpoints, output = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    torch.cuda.synchronize = lambda *_: None
    from faster_qwen3_tts import FasterQwen3TTS

    tts = FasterQwen3TTS(load(checkpoints / "base"), None, None, "cpu", torch.float32)
    tts._warmed_up = True
    waves, calls = {}, []
    with tempfile.TemporaryDirectory() as folder:
        import soundfile

        path = Path(folder) / "reference.wav"
        soundfile.write(path, synthetic_wave(SECONDS), 24000, subtype="FLOAT")
        for name, options in CALLS.items():
            arguments = {"language": "english", "ref_audio": path, **options, **SETTINGS}
            chunks = [
                audio
                for audio, _, _ in tts.generate_voice_clone_streaming(
                    TEXT, parity_mode=True, **arguments
                )
            ]
            wave = np.concatenate(chunks)
            waves[name] = torch.tensor(wave[::STRIDE])
            calls.append({"name": name, "options": options, "num_samples": len(wave)})
    description = {"text": TEXT, "seconds": SECONDS, "settings": SETTINGS, "calls": calls}
    save(output / "faster", waves, description)


if __name__ == "__main__":
    main()
