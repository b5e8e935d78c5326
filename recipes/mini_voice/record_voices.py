"""Record sentences with voices of Kokoro, for `benchmarks/abx.py` and for examples.

    python -m recipes.mini_voice.record_voices ../shared/corpus/dev.txt --out build/recordings

Writes OUT/{female,male}/NAME/NUMBER.wav. Every voice reads other sentences. The default voices are
the held-out ones, which neither codec nor talker is trained on. An interrupted run continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import soundfile

from recipes.mini_voice.settings import SAMPLE_RATE, load_settings, parser
from recipes.mini_voice.synthesize import Teacher
from recipes.mini_voice.voices import HELD_OUT, TRAINING_VOICES, Voices

SEXES = {"f": "female", "m": "male"}


def record(
    teacher: Teacher, names: Sequence[str], texts: Sequence[str], lines_each: int, out: Path
) -> None:
    """Sentence n is read by voice n % voices; `teacher` chooses the voice by this number."""
    for number, text in enumerate(texts[: lines_each * len(names)]):
        name = names[number % len(names)]
        path = out / SEXES[name[1]] / name / f"{number:04d}.wav"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        wave, _ = teacher.read(text, seed=number)
        if len(wave):
            soundfile.write(path.with_suffix(".part"), wave, SAMPLE_RATE, "PCM_16", format="WAV")
            path.with_suffix(".part").rename(path)
            path.with_suffix(".txt").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("texts", type=Path, help="one sentence per line")
    options.add_argument("--voices", nargs="+", default=list(HELD_OUT))
    options.add_argument("--lines", type=int, default=12, help="sentences of each voice")
    args = options.parse_args()
    data = load_settings(args.smoke, args.set).data
    data.speakers = ["heart", TRAINING_VOICES]
    voices = Voices(Path(data.voices))
    chosen = [voices.named(name) for name in args.voices]
    teacher = Teacher(data, 1, lambda line: chosen[line % len(chosen)])
    texts = args.texts.read_text(encoding="utf-8").splitlines()
    record(teacher, args.voices, texts, args.lines, args.out)


if __name__ == "__main__":
    main()
