"""The buffer between the network and the speakers, in Chromium."""

from __future__ import annotations

import pytest

from tests.support.page_driver import Driver
from tests.support.serving import Running

pytestmark = pytest.mark.ci  # Chromium; test_browser.py has the default tests


def test_page_without_audio_worklet_plays(server: Running, page: Driver) -> None:
    """Browsers offer no AudioWorklet over plain HTTP from another machine."""
    page.run_first("delete BaseAudioContext.prototype.audioWorklet")
    page.open(server.url)
    page.say("The old way.")
    page.wait(lambda: page.status.startswith("Spoken"))
    assert page.num_loud > 1_000
    page.check()


def test_ring_plays_without_gaps(server: Running, page: Driver) -> None:
    page.open(server.url)
    got = page.tab.evaluate("""async () => {
      const { Ring } = await import("/page/ring.js");
      const ring = new Ring(4000, 0.25), out = [], block = new Float32Array(128);
      ring.take({ reset: 1 });
      let next = 1;
      const push = (n) => ring.take({ push: Float32Array.from({ length: n }, () => next++) });
      for (let i = 0; i < 60; i++) {
        if (ring.queued < 700) push(1 + (i * 37) % 300);
        ring.pull(block);
        out.push(...block);
      }
      const gaps = ring.gaps, pulled = out.filter((s) => s !== 0);
      ring.take({ reset: 2 });
      ring.pull(block);
      const ramp = [...block];
      ring.pull(block);
      return { gaps, pulled, ramp, after: [...block], state: ring.state };
    }""")
    assert got["pulled"] == list(range(1, len(got["pulled"]) + 1))  # no sample is lost or repeated
    assert len(got["pulled"]) > 5_000  # the buffer wraps many times
    assert got["gaps"] == 0
    assert got["ramp"][0] > 0
    assert 0 <= got["ramp"][-1] < got["ramp"][0] / 50
    assert not any(got["after"])
    assert got["state"]["id"] == 2


def test_ring_after_a_stop_keeps_all_samples(server: Running, page: Driver) -> None:
    page.open(server.url)
    pulled, state = page.tab.evaluate("""async () => {
      const { Ring } = await import("/page/ring.js");
      const ring = new Ring(1000, 4), block = new Float32Array(128), pulled = [];
      ring.take({ push: new Float32Array(1000).fill(0.5) });
      ring.pull(block);
      ring.take({ reset: 1 }); // a stop, and at once another track, before the next block
      ring.take({ reset: 2 });
      ring.take({ push: new Float32Array(500).fill(2) });
      ring.take({ end: true });
      for (let i = 0; i < 6; i++) { ring.pull(block); pulled.push(...block); }
      return [pulled, ring.state];
    }""")
    assert [round(sample) for sample in pulled[:500]] == [
        2
    ] * 500  # mixed with the fade-out of the old track
    assert pulled[0] > 2.4
    assert pulled[200:500] == [2] * 300
    assert not any(pulled[500:])
    assert (state["id"], state["played"], state["isDone"]) == (2, 500, True)


def test_ring_after_a_gap_waits_longer(server: Running, page: Driver) -> None:
    page.open(server.url)
    waits = page.tab.evaluate("""async () => {
      const { Ring } = await import("/page/ring.js");
      const ring = new Ring(10000, 20), block = new Float32Array(100), waits = [];
      for (let gap = 0; gap < 5; gap++) {
        let pushed = 0;
        while (ring.isWaiting) { ring.take({ push: new Float32Array(100) }); pushed += 100; ring.pull(block); }
        waits.push([pushed, ring.gaps]);
        while (!ring.isWaiting) ring.pull(block);
      }
      return waits;
    }""")  # noqa: E501
    assert [count for _, count in waits] == [0, 1, 2, 3, 4]
    assert [pushed for pushed, _ in waits] == [800, 2_400, 7_200, 21_600, 30_000]
