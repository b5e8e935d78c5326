"""Make a podcast episode with two speakers, show notes and one track per speaker.

    python examples/podcast.py
    python examples/podcast.py --model Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice \\
        --voices vivian ryan -o episode.mp3

Writes the episode, episode-Anna.mp3 and episode-Ben.mp3 for editing, and episode.txt with the time
of every line.
"""

import argparse
from pathlib import Path

from vivace import TTS

SCRIPT = [
    ("Anna", "Welcome back to the show. Today we talk about bread."),
    ("Ben", "Bread? [pause 0.3s] I thought it was about birds."),
    ("Anna", "[overlap 0.2s] That was last week."),
    ("Ben", "Then I have prepared the wrong notes."),
    ("Anna", "[pause 0.5s] Let us begin anyway."),
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a podcast episode with two speakers.")
    parser.add_argument("--model", help="default: the embedded voice")
    parser.add_argument("--voices", nargs=2, default=["heart", "michael"], metavar="NAME")
    parser.add_argument("-o", "--output", type=Path, default=Path("episode.mp3"))
    arguments = parser.parse_args()

    with TTS.load(arguments.model) as tts:
        voices = dict(zip(("Anna", "Ben"), arguments.voices, strict=True))
        episode = tts.dialogue(SCRIPT, voices=voices, seed=7)
    episode.save(arguments.output, overwrite=True)
    episode.save_tracks(arguments.output, overwrite=True)

    notes = [f"{line.start_s:6.1f} s  {line.speaker}: {line.text}" for line in episode.lines]
    arguments.output.with_suffix(".txt").write_text("\n".join(notes) + "\n", encoding="utf-8")
    print(f"{arguments.output}: {episode.duration_s:.1f} s, {len(episode.lines)} lines")


if __name__ == "__main__":
    main()
