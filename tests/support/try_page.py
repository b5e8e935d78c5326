"""The page that speaks in the browser: assembled, served, and with a voice that is a tone.

The tone replaces onnxruntime-web and the exported graphs. Everything else is the page's own code.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.support.http_server import serve_http
from tests.support.project import ROOT, load_script
from vivace.checkpoint import EMBEDDED

NUM_FRAMES, SAMPLES_PER_FRAME = 8, 1920
# Every frame has a code from the noise of the seed and a tone of 1,920 samples. A prompt of more
# than 45 rows does not end by itself. On WebGPU the first sample of every chunk is `GPU_MARK`, and
# the graph may name a fault: "codec fails 2" throws in the third run after the graph was warmed up.
GPU_MARK, NUM_WARM_RUNS = 0.05, 8
TONE_RUNTIME = """
let loseDevice = null;
export const env = { wasm: {}, webgpu: { device: { lost: new Promise((resolve) => { loseDevice = resolve; }) } } };
export class Tensor {
  constructor(type, data, dims) { Object.assign(this, { type, data, dims }); }
}
const tensor = (data, dims) => new Tensor("float32", data, dims);
export const InferenceSession = {
  async create(graph, { executionProviders: [provider] }) {
    const [kind, fault, first] = new TextDecoder().decode(graph).split(" ");
    if (kind === "broken") throw new Error("The graph is damaged.");
    if (provider === "webgpu") return openGpu(fault, Number(first) + %(warm)d);
    return { run: kind === "frame" ? makeFrame : decode };
  },
};
async function makeFrame({ past, text_ids: ids, noise }) {
  const made = past.dims[0] ? past.data.at(-1) : ids.data.length > 45 ? -1e9 : 0;
  const number = made < 0 ? 1 : made + 1;
  const codes = number > %(frames)d ? [9, 0] : [Math.round(noise.data[0] * 100) & 7, number & 7];
  const row = new Float32Array(ids.data.length * 2).fill(made < 0 ? -1e9 : number);
  return { next_codes: { data: Int32Array.from(codes) }, new_past: { data: row }, scores: { data: [0, 0] } };
}
function openGpu(fault, first) {
  if (fault === "unsupported") throw new Error("There is no kernel for this operator.");
  let number = 0;
  return { async run(feeds) {
    const made = await decode(feeds);
    if (fault && number++ >= first) {
      if (fault === "fails") throw new Error("The GPU failed.");
      if (fault === "lost") loseDevice({ message: "Device lost." });
      if (fault === "wrong") made.samples.data.fill(NaN);
      else await new Promise(() => {}); // "hangs" and "lost"
    }
    made.samples.data[0] = %(mark)f;
    return made;
  } };
}
async function decode({ codes, state }) {
  const samples = new Float32Array(codes.dims[0] * %(samples)d);
  const start = state.data[0];
  for (let i = 0; i < samples.length; i++) samples[i] = 0.3 * Math.sin(2 * Math.PI * 300 * (start + i) / 24000);
  return { samples: { data: samples }, new_state: tensor(Float32Array.of(start + samples.length), [1]) };
}
""" % {  # noqa: E501, UP031
    "frames": NUM_FRAMES, "samples": SAMPLES_PER_FRAME, "mark": GPU_MARK, "warm": NUM_WARM_RUNS,
}  # fmt: skip
MANIFEST = {
    "format": "vivace-onnx",
    "format_version": 1,
    "sample_rate": 24_000,
    "samples_per_frame": SAMPLES_PER_FRAME,
    "num_codebooks": 2,
    "codebook_size": 8,
    "first_codes": [*range(8), 9],
    "end_code": 9,
    "sampling": {
        "temperature": 0.7, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0,
        "predictor_temperature": 0.7, "predictor_top_k": 50, "predictor_top_p": 1.0,
        "min_frames": 2, "max_frames": 1023,
    },
    "prompt": {
        "layout": "whole", "text_code": 10, "speech_code": 11, "end_id": 509, "pad_id": 507,
        "no_code": -1,
        "before_text": {name: {"auto": [[480, -1]]} for name in ("heart", "michael")},
    },
    "graphs": {
        "frame.onnx": {"inputs": [{"name": "past", "shape": ["past_rows", 2]}]},
        "codec.onnx": {"inputs": [{"name": "state", "shape": [1]}]},
    },
}  # fmt: skip


def write_tone_voice(folder: Path, *, codec: bytes = b"codec") -> Path:
    """An exported voice whose graphs `TONE_RUNTIME` reads."""
    folder.mkdir()
    reading = json.loads((EMBEDDED / "config.json").read_text("utf-8"))["reading_config"]
    (folder / "manifest.json").write_text(json.dumps({**MANIFEST, "reading": reading}))
    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_bytes((EMBEDDED / name).read_bytes())
    (folder / "frame.onnx").write_bytes(b"frame")
    (folder / "codec.onnx").write_bytes(codec)
    return folder


def write_tone_runtime(path: Path) -> Path:
    """A package with the files of onnxruntime-web that the page uses."""
    script = load_script(ROOT / "scripts" / "make_try_page.py")
    with tarfile.open(path, "w:gz") as package:
        for name, wasm in script.RUNTIME_FILES.values():
            for member, body in ((name, TONE_RUNTIME.encode()), (wasm, wasm.encode() * 5_000)):
                info = tarfile.TarInfo(member)
                info.size = len(body)
                package.addfile(info, io.BytesIO(body))
    return path


@dataclass
class Site:
    """A running static web server."""

    url: str
    paths: list[str] = field(default_factory=list)  # of all requests, in order
    truncated: str = ""  # a file whose transfer breaks off
    is_down: bool = False  # every connection is closed without a response

    def renew(self) -> None:
        """Forget all requests and faults."""
        self.paths.clear()
        self.truncated, self.is_down = "", False

    @property
    def num_assets(self) -> int:
        """Requests for weights and other files of the voice."""
        return sum(".gz" in path for path in self.paths)


@contextmanager
def serve(folder: Path, headers: dict[str, str] | None = None) -> Iterator[Site]:
    site = Site("")

    class Handler(SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            super().end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            site.paths.append(self.path)

        def do_GET(self) -> None:
            if not site.is_down:
                super().do_GET()
            self.close_connection = True

        def copyfile(self, source: Any, outputfile: Any) -> None:
            if site.truncated and site.truncated in self.path:
                outputfile.write(source.read(8))
            else:
                super().copyfile(source, outputfile)

    with serve_http(partial(Handler, directory=str(folder))) as url:
        site.url = f"{url}/"
        yield site
