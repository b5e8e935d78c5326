"""The page's choice between WebAssembly and WebGPU: trial, faults, late runs. No browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.node import run_modules

# Simulated sessions that count their runs. A sample is the number of its frame. Each run advances
# `clock` by the milliseconds per frame that its session was created with.
SETUP = """
import { RemoteSession, SwitchingSession, compareSessions, inTurn } from './codec-session.js';
import { Decoder } from './model.js';
class Tensor { constructor(type, data, dims) { Object.assign(this, { type, data, dims }); } }
const ort = { Tensor };
const manifest = { num_codebooks: 2, codebook_size: 8,
  graphs: { 'codec.onnx': { inputs: [{ name: 'state', shape: [1] }] } } };
let clock = 0;
const now = () => clock;
class Session {
  constructor({ ms = 1, gain = 1, fault = '', from = 0 } = {}) { Object.assign(this, { ms, gain, fault, from, runs: 0 }); }
  async run({ codes, state }) {
    const number = this.runs++;
    if (this.fault === 'fails' && number >= this.from) throw new Error('The GPU failed.');
    if (this.fault === 'hangs' && number >= this.from) return new Promise(() => {});
    clock += this.ms * codes.dims[0];
    const start = state.data[0];
    const samples = Float32Array.from({ length: codes.dims[0] }, (_, i) => this.gain * (start + i + 1));
    return { samples: { data: samples }, new_state: new Tensor('float32', Float32Array.of(start + codes.dims[0]), [1]) };
  }
}
const decodeAll = async (session, counts) => {
  const decoder = new Decoder(ort, manifest, session), samples = [];
  for (const count of counts) samples.push(...await decoder.decode(new Int32Array(2 * count)));
  return samples;
};
"""  # noqa: E501


def run(folder: Path, script: str, data: object = None) -> Any:
    return run_modules(folder, SETUP + script, data)


@pytest.mark.parametrize(
    ("other", "is_faster"),
    [({"ms": 1}, True), ({"ms": 9}, False), ({"ms": 30}, False), ({"ms": 1, "gain": 1.001}, True)],
    ids=["faster", "little gain", "slower", "rounding"],
)
def test_trial_keeps_the_faster_session(
    other: dict[str, float], is_faster: bool, tmp_path: Path
) -> None:
    script = """
    const own = new Session({ ms: 10 }), other = new Session(data);
    const trial = await compareSessions({ ort, manifest, own, other, now, isIdle: () => true });
    const result = { ...trial, runs: [own.runs, other.runs] };
    """
    trial = run(tmp_path, script, other)
    assert trial["isFaster"] is is_faster
    assert trial["ownMs"] == pytest.approx(10)
    assert trial["otherMs"] == pytest.approx(other["ms"])
    assert trial["runs"] == [4, 4]


@pytest.mark.parametrize("fault", [{"gain": 1.1}, {"gain": None}, {"fault": "fails", "from": 2}])
def test_trial_of_a_session_with_faults_fails(fault: dict[str, Any], tmp_path: Path) -> None:
    script = """
    const other = new Session({ ...data, gain: data.gain === null ? NaN : data.gain });
    let result = '';
    try {
      await compareSessions({ ort, manifest, own: new Session({ ms: 10 }), other, now, isIdle: () => true });
    } catch (error) { result = error.message; }
    """  # noqa: E501
    assert "GPU" in run(tmp_path, script, fault)


def test_trial_of_a_session_that_hangs_ends(tmp_path: Path) -> None:
    script = """
    const other = new Session({ fault: 'hangs', from: 1 });
    const result = await compareSessions({ ort, manifest, own: new Session(), other, now, isIdle: () => true });
    """  # noqa: E501
    assert run(tmp_path, script)["isFaster"] is False


def test_trial_stops_when_speech_begins(tmp_path: Path) -> None:
    script = """
    let checks = 0;
    const result = [];
    for (const limit of [0, 2, 5]) {
      checks = 0;
      const isIdle = () => checks++ < limit, own = new Session(), other = new Session();
      const trial = await compareSessions({ ort, manifest, own, other, now, isIdle });
      result.push([trial, own.runs + other.runs]);
    }
    """
    assert run(tmp_path, script) == [[None, 0], [None, 2], [None, 5]]


@pytest.mark.parametrize("fault", ["", "fails"])
def test_failed_run_is_repeated_without_a_gap(fault: str, tmp_path: Path) -> None:
    script = """
    const own = new Session(), other = new Session({ fault: data, from: 2 }), dropped = [];
    const session = new SwitchingSession(own, (reason) => dropped.push(reason));
    session.use(other, 1e6);
    const samples = await decodeAll(session, [1, 2, 4, 8, 8]);
    const result = { samples, runs: [own.runs, other.runs], dropped };
    """
    found = run(tmp_path, script, fault)
    assert found["samples"] == list(range(1, 24))
    assert found["runs"] == ([3, 3] if fault else [0, 5])
    assert found["dropped"] == (["The GPU failed."] if fault else [])


def test_session_is_dropped_after_three_late_runs(tmp_path: Path) -> None:
    script = """
    const own = new Session(), other = new Session({ fault: 'hangs' }), dropped = [];
    const session = new SwitchingSession(own, (reason) => dropped.push(reason));
    session.use(other, 0.001);
    const samples = await decodeAll(session, [1, 2, 4, 8, 8]);
    const result = { samples, runs: [own.runs, other.runs], dropped };
    """
    found = run(tmp_path, script)
    assert found == {"samples": list(range(1, 24)), "runs": [5, 3], "dropped": ["too slow"]}


def test_remote_session_rejects_all_runs_after_the_device_is_lost(tmp_path: Path) -> None:
    script = """
    const port = { sent: [], postMessage(message) { this.sent.push(message); } };
    const remote = new RemoteSession(ort, port), own = new Session(), dropped = [];
    const session = new SwitchingSession(own, (reason) => dropped.push(reason));
    session.use(remote, 1e6);
    const done = decodeAll(session, [1, 2, 4]);
    const reply = ({ number, codes, state }) => port.onmessage({ data: { number,
      samples: Float32Array.of(1), state: Float32Array.of(state[0] + codes.length / 2) } });
    await null;
    reply(port.sent[0]);
    const nextTask = () => new Promise((resolve) => { setTimeout(resolve); });
    for (let i = 0; port.sent.length < 2 && i < 100; i++) await nextTask();
    port.onmessage({ data: { isLost: true, error: 'Device lost.' } });
    reply(port.sent[1]); // too late
    const samples = await done;
    const result = { samples, sent: port.sent.length, runs: own.runs, dropped };
    """
    found = run(tmp_path, script)
    assert found["samples"] == list(range(1, 8))
    assert (found["sent"], found["runs"], found["dropped"]) == (2, 2, ["Device lost."])


def test_runs_in_turn_do_not_overlap(tmp_path: Path) -> None:
    script = """
    let running = 0, most = 0;
    const slow = { async run(feeds) {
      most = Math.max(most, ++running);
      await new Promise((resolve) => { setTimeout(resolve); });
      running--;
      if (feeds === 1) throw new Error('failed');
      return feeds;
    } };
    const session = inTurn(slow);
    const made = await Promise.allSettled([0, 1, 2].map((feeds) => session.run(feeds)));
    const result = { most, made: made.map(({ value, reason }) => value ?? reason.message) };
    """
    assert run(tmp_path, script) == {"most": 1, "made": [0, "failed", 2]}
