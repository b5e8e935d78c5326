"""The page that speaks in the browser: download, start, first audio and speed in Chromium.

    python scripts/make_try_page.py build/try
    python benchmarks/browser.py build/try --json benchmarks/results/browser-mini.json

Serves the folder on this machine, speaks every line once after a first one, and counts the frames
and samples. `x_real_time` is seconds of audio per second from the click to the last sample made.
The browser is headless and plays to a silent device in real time; making runs ahead of playing.
`--isolated` measures again with the headers that allow threads. `--codec-threads` sets the number
of the codec's threads, which otherwise depends on the number of cores. `load` is the load average
of the machine before the measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from vivace.cli.bench.machine import machine

LINES = (
    "Hello, this is a test of the voice.",
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "We were talking about the weather yesterday, and then it started to rain.",
    "Good morning! Your table for four is booked for half past seven.",
    "On the thousandth evening, one of the waves counted back.",
)
LIMIT_MS = 120_000
CORES = "Object.defineProperty(navigator, 'hardwareConcurrency', { value: %d })"
ISOLATED = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}
# Resolves when all samples of a line were made. Playback is not awaited.
SPEAK = """async ([text, seed]) => {
  const { speaker } = vivaceTry, began = performance.now(), marks = { frames: 0, samples: 0 };
  await speaker.speak(text, { voice: Object.keys(speaker.manifest.prompt.before_text)[0], seed,
    onSamples: (samples, codes) => {
      marks.first ??= performance.now() - began;
      if (!codes) return;
      marks.frames += codes.length / speaker.manifest.num_codebooks;
      marks.samples += samples.length;
    } });
  return { ...marks, wall: performance.now() - began };
}"""
OPEN = """async () => {
  const began = performance.now();
  let loaded = 0;
  await vivaceTry.speaker.open((done, total) => { if (done >= total) loaded = performance.now() - began; });
  return { loaded, opened: performance.now() - began, threads: vivaceTry.speaker.numThreads };
}"""  # noqa: E501


class Handler(SimpleHTTPRequestHandler):
    extra: dict[str, str] = {}  # noqa: RUF012

    def end_headers(self) -> None:
        for name, value in self.extra.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write nothing."""


def serve(folder: Path, *, is_isolated: bool) -> ThreadingHTTPServer:
    handler = type("Isolated", (Handler,), {"extra": ISOLATED}) if is_isolated else Handler
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def measure(url: str, lines: list[str], num_threads: int | None) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    load = round(os.getloadavg()[0], 1)
    with sync_playwright() as driven:
        browser = driven.chromium.launch(
            executable_path=next(filter(None, map(shutil.which, names)), None),
            args=["--no-sandbox"],
        )
        page = browser.new_page(service_workers="block")  # it would add the headers
        page.set_default_timeout(LIMIT_MS)
        if num_threads:
            page.add_init_script(CORES % (num_threads + 1))
        page.goto(url)
        page.wait_for_selector("#speak:enabled")
        first = page.evaluate(OPEN)
        spoken = [page.evaluate(SPEAK, [line, seed]) for seed, line in enumerate(lines)]
        page.reload()
        page.wait_for_selector("#speak:enabled")
        again = page.evaluate(OPEN)
        version = browser.version
        browser.close()
    return summarize(first, again, spoken) | {"load": load, "chromium": version}


def summarize(
    first: dict[str, float], again: dict[str, float], spoken: list[dict[str, float]]
) -> dict[str, Any]:
    rows = [
        {
            "frames": int(one["frames"]),
            "samples": int(one["samples"]),
            "first_audio_ms": round(one["first"], 1),
            "x_real_time": round(one["samples"] / 24 / one["wall"], 2),
        }
        for one in spoken[1:]
    ]
    return {
        "codec_threads": int(first["threads"]),
        "start_ms": round(first["opened"]),
        "start_cached_ms": round(again["opened"]),
        "first_audio_ms": round(statistics.median(row["first_audio_ms"] for row in rows), 1),
        "x_real_time": round(statistics.median(row["x_real_time"] for row in rows), 2),
        "slowest_x_real_time": min(row["x_real_time"] for row in rows),
        "lines": rows,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="written by scripts/make_try_page.py")
    parser.add_argument("--lines", type=int, default=len(LINES), help="2 or more")
    parser.add_argument("--isolated", action="store_true", help="measure again with COOP and COEP")
    parser.add_argument("--codec-threads", type=int, help="threads of the codec with COOP and COEP")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    listed = json.loads((options.folder / "assets" / "list.json").read_text(encoding="utf-8"))
    sizes = {name: entry["bytes"] for name, entry in listed["files"].items()}
    results = []
    for is_isolated in (False, True)[: 1 + options.isolated]:
        server = serve(options.folder, is_isolated=is_isolated)
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        threads = options.codec_threads if is_isolated else None
        results.append(measure(url, list(LINES[: options.lines]), threads))
        server.shutdown()
    report = {
        "benchmark": "browser",
        "machine": machine(),
        "download_bytes": sum(sizes.values()),
        "files": sizes,
        "results": results,
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for row in results:
        print(json.dumps({name: value for name, value in row.items() if name != "lines"}))


if __name__ == "__main__":
    main()
