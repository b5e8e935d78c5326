"""The embedded voice in Chromium, with onnxruntime-web from the npm registry.

Run by hand: `pytest -m slow tests/browser`. VIVACE_ORT_WEB may name a downloaded package.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import page_driver
from tests.support.page_driver import Driver, tab
from tests.support.project import ROOT, load_script
from tests.support.try_page import Site, serve
from vivace import TTS

pytestmark = pytest.mark.slow

TEXT, SEED = "Hello, this is a test of the voice.", 3
SOFTWARE_GPU = [
    "--no-sandbox",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
]
# Samples of the same two frames on both devices.
DECODE = """async () => {
  if (!await navigator.gpu?.requestAdapter()) return null;
  const { getList, loadAssets } = await import("./assets.js");
  const { openSession } = await import("./runtime.js");
  const { Decoder } = await import("./model.js");
  const base = new URL("assets/", document.baseURI);
  const files = await loadAssets(base, await getList(base), true, () => {}), found = {};
  const manifest = JSON.parse(new TextDecoder().decode(files["manifest.json"]));
  const { num_codebooks: width, codebook_size: size } = manifest;
  for (const provider of ["wasm", "webgpu"]) {
    const { ort, session } = await openSession({ provider, build: "jspi",
      wasm: files["ort.jspi.wasm"].slice(), graph: files["codec.onnx"] });
    const codes = Int32Array.from({ length: 2 * width }, (_, i) => (i * 37) % size);
    found[provider] = Array.from(await new Decoder(ort, manifest, session).decode(codes));
  }
  return found;
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page with float32 weights, which are larger than a published page may be."""
    scratch = tmp_path_factory.mktemp("voice")
    script = load_script(ROOT / "scripts" / "make_try_page.py")
    given = os.environ.get("VIVACE_ORT_WEB")
    try:
        runtime = script.check_runtime(Path(given) if given else script.fetch_runtime(scratch))
    except (script.BuildError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no onnxruntime-web: {error}")
    voice = script.export_voice(None, scratch, weights="float32")
    script.assemble(scratch / "page", voice, runtime, max_bytes=100_000_000)
    return scratch / "page"


@pytest.fixture
def site(folder: Path) -> Iterator[Site]:
    with serve(folder) as running:
        yield running


def speak(
    page: Driver, site: Site, num_cores: int, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    monkeypatch.setattr(page_driver, "LIMIT_S", 300.0)
    page.tab.add_init_script(
        f"Object.defineProperty(navigator, 'hardwareConcurrency', {{ value: {num_cores} }})"
    )
    page.tab.goto(site.url)
    page.wait(lambda: page.status.startswith("Ready"))
    page.tab.fill("#seed", str(SEED))
    page.say(TEXT)
    page.wait(lambda: page.status.startswith("Spoken"))
    item: dict[str, Any] = page.tab.evaluate(
        "(({ numFrames, codes, track }) => ({ numFrames, codes, num: track.length,"
        " samples: Array.from(track.samples.subarray(0, track.length)) }))(vivaceTry.playback.item)"
    )
    return item


@pytest.mark.parametrize("num_threads", [1, 2])
def test_page_speaks_the_codes_of_the_package(
    num_threads: int, launched: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two threads of the codec, the service worker has isolated the page."""
    with tab(launched) as page:
        item = speak(page, site, num_threads + 1, monkeypatch)
        page.check()
        assert page.tab.evaluate("vivaceTry.speaker.numThreads") == num_threads
        loud = page.num_loud
    with TTS.load(device="cpu") as tts:
        expected = tts.speak(TEXT, voice="heart", seed=SEED)
    codes = np.array(item["codes"]).reshape(item["numFrames"], -1)
    assert item["num"] == item["numFrames"] * 1920
    assert codes.tolist() == expected.codes.tolist()
    assert loud > 0.5 * item["num"]
    own, other = np.array(item["samples"]) / 32767, expected.samples
    length = min(len(own), len(other))  # the package may trim silence at the start
    assert np.abs(own[-length:] - other[-length:]).max() < 0.01


def test_codec_on_webgpu_gives_the_samples_of_webassembly(launched: Any, site: Site) -> None:
    """Runs on SwiftShader, a GPU emulated by the CPU. Takes minutes."""
    start = launched.browser_type.launch
    with start(executable_path=page_driver.CHROMIUM, args=SOFTWARE_GPU) as with_gpu:
        page = with_gpu.new_page(service_workers="block")
        page.goto(site.url)
        found = page.evaluate(DECODE)
    if found is None:
        pytest.skip("this Chromium has no WebGPU adapter")
    own, other = (np.array(found[name]) for name in ("wasm", "webgpu"))
    assert own.shape == other.shape == (2 * 1920,)
    assert np.square(own).mean() > 0
    assert 10 * np.log10(np.square(own - other).mean() / np.square(own).mean()) < -80
