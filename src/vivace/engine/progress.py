"""A bar on stderr for those who wait for a long text."""

from __future__ import annotations

import sys

from vivace.engine.stream import Stream

WIDTH = 30


def show_progress(stream: Stream) -> None:
    """Draw how much of the text is said over what was drawn before; end the line at the end."""
    is_over = stream.finish_reason is not None
    share, usage = stream.progress, stream.usage
    bar = "█" * round(WIDTH * share)
    line = (
        f"\r{share:4.0%} |{bar:<{WIDTH}}| {_clock(usage.audio_s)} of audio "
        f"in {_clock(usage.wall_s)}, {usage.times_real_time:.1f} times real time "
    )
    sys.stderr.write(line + "\n" * is_over)
    sys.stderr.flush()


def show_batch(num_done: int, num_texts: int) -> None:
    """Count the texts of a batch that are done."""
    sys.stderr.write(f"\r{num_done} of {num_texts} texts" + "\n" * (num_done == num_texts))
    sys.stderr.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"
