// Sessions of codec.onnx: one in another worker, and one that switches to it while it is faster.
import { CHUNKS, Decoder } from "./model.js";

const MIN_GAIN = 1.25; // a smaller gain may be chance
const MAX_ERROR = 1e-4; // -40 dB, of the power of the samples
const MAX_LATE = 3; // runs on the other session that took too long
const MIN_LIMIT_MS = 50;

// The same session, with one run at a time: onnxruntime allows no second one meanwhile.
export function inTurn(session) {
	let last = Promise.resolve();
	return { run(feeds) {
		const made = last.then(() => session.run(feeds));
		last = made.catch(() => {});
		return made;
	} };
}

// A session in another worker, on a MessagePort. Its state stays here, so that any other session can
// repeat a run that fails.
export class RemoteSession {
	constructor(ort, port) {
		Object.assign(this, { ort, port, number: 0, runs: new Map(), error: null });
		port.onmessage = ({ data }) => (data.isLost ? this.fail(new Error(data.error)) : this.settle(data));
	}

	run({ codes, num_frames: numFrames, state }) {
		if (this.error) return Promise.reject(this.error);
		return new Promise((resolve, reject) => {
			this.runs.set(++this.number, { resolve, reject });
			this.port.postMessage({ number: this.number, codes: codes.data, numFrames: numFrames.data[0], state: state.data });
		});
	}

	settle({ number, samples, state, error }) {
		const run = this.runs.get(number);
		this.runs.delete(number);
		if (error) run?.reject(new Error(error));
		else run?.resolve({ samples: { data: samples }, new_state: new this.ort.Tensor("float32", state, [state.length]) });
	}

	fail(error) {
		this.error = error;
		for (const { reject } of this.runs.values()) reject(error);
		this.runs.clear();
	}
}

// Runs on WebAssembly (`own`), or on a faster session (`other`). A run of `other` that fails or is late
// is repeated on `own` with the same state, so no samples are lost.
export class SwitchingSession {
	// `onDrop(reason)` is called when the other session is dropped.
	constructor(own, onDrop = () => {}) {
		Object.assign(this, { own, onDrop, other: null, numLate: 0, msPerFrame: 0 });
	}

	// `msPerFrame`: of `own` in the trial. A run of `other` that takes longer is late.
	use(other, msPerFrame) {
		Object.assign(this, { other, msPerFrame, numLate: 0 });
	}

	drop(reason) {
		if (!this.other) return;
		this.other = null;
		this.onDrop(reason);
	}

	async run(feeds) {
		const { other } = this;
		if (!other) return this.own.run(feeds);
		try {
			const made = await within(other.run(feeds), Math.max(MIN_LIMIT_MS, this.msPerFrame * feeds.codes.dims[0]));
			if (made) return made;
			if (++this.numLate >= MAX_LATE) this.drop("too slow");
		} catch (error) {
			this.drop(error.message);
		}
		return this.own.run(feeds);
	}
}

// The result of a promise, or null after `ms`.
function within(promise, ms) {
	let timer = 0;
	const limit = new Promise((resolve) => { timer = setTimeout(resolve, ms, null); });
	return Promise.race([promise, limit]).finally(() => clearTimeout(timer));
}

// Decodes the first chunks of an utterance. Returns null if `isIdle()` changes meanwhile.
async function measure({ ort, manifest, session, isIdle, now }) {
	const decoder = new Decoder(ort, manifest, session), samples = [], began = now();
	let frame = 0;
	for (const count of CHUNKS) {
		if (!isIdle()) return null;
		const codes = Int32Array.from({ length: count * manifest.num_codebooks }, (_, i) => (frame * 31 + i * 17) % manifest.codebook_size);
		samples.push(...await decoder.decode(codes));
		frame += count;
	}
	return { msPerFrame: (now() - began) / frame, ms: now() - began, samples };
}

const power = (values) => values.reduce((sum, value) => sum + value * value, 0);

// Decodes the same frames on both sessions. Resolves to {isFaster, ownMs, otherMs}, in ms per frame, or to
// null if the worker was needed meanwhile. Throws if `other` fails.
export async function compareSessions({ own, other, now = () => performance.now(), ...shared }) {
	const first = await measure({ session: own, now, ...shared });
	if (!first) return null;
	const found = await within(measure({ session: other, now, ...shared }).then((second) => ({ second })), Math.max(MIN_LIMIT_MS, 2 * first.ms));
	if (!found) return { isFaster: false, ownMs: first.msPerFrame };
	const { second } = found;
	if (!second) return null;
	const difference = power(first.samples.map((value, i) => value - second.samples[i]));
	if (!(difference <= MAX_ERROR * power(first.samples))) throw new Error("The samples of the GPU are wrong."); // also NaN
	return { isFaster: second.msPerFrame * MIN_GAIN < first.msPerFrame, ownMs: first.msPerFrame, otherMs: second.msPerFrame };
}
