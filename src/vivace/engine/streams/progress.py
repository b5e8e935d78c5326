"""Progress bars on stderr for long texts and batches."""

from __future__ import annotations

import sys

from vivace.engine.streams.stream import Stream

WIDTH = 30


def show_progress(stream: Stream) -> None:
    """Draw the share of the text that is spoken over the previous bar."""
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
    """Show the number of finished texts."""
    sys.stderr.write(f"\r{num_done} of {num_texts} texts" + "\n" * (num_done == num_texts))
    sys.stderr.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"
