// The codec on WebGPU: finds an adapter, compares it with WebAssembly once, and stores the result.
const STORE = "vivace.try.codec";
const ADAPTER_LIMIT_MS = 2000;
const START_LIMIT_MS = 30_000; // of opening the graph and compiling shaders

// Name of the GPU; "" without one. JSPI (`Suspending`) is needed by the build of onnxruntime with WebGPU.
export async function findAdapter() {
	if (!navigator.gpu || !("Suspending" in WebAssembly)) return "";
	const limit = new Promise((resolve) => { setTimeout(resolve, ADAPTER_LIMIT_MS, null); });
	const adapter = await Promise.race([navigator.gpu.requestAdapter().catch(() => null), limit]);
	if (!adapter || adapter.info?.isFallbackAdapter) return ""; // a fallback adapter is a program on the CPU
	const { vendor, architecture, description } = adapter.info ?? {};
	return [vendor, architecture, description].filter(Boolean).join(" ") || "unknown";
}

// The result of an earlier trial with this key: {isFaster, ownMs}; null without one.
function readTrial(key) {
	try {
		const found = JSON.parse(localStorage.getItem(STORE));
		return found?.key === key ? found.trial : null;
	} catch {
		return null; // storage is forbidden, or the entry is damaged
	}
}

// Whether the GPU was slower or failed in an earlier trial.
export function isRuledOut(key) { return readTrial(key)?.isFaster === false; }

// `trial` null: the next visit tries again.
function writeTrial(key, trial) {
	try {
		if (trial) localStorage.setItem(STORE, JSON.stringify({ key, trial }));
		else localStorage.removeItem(STORE);
	} catch { /* it lasts until a reload */ }
}

// Opens the codec on WebGPU in a worker of its own and offers it to the codec's worker, which speaks with
// WebAssembly before, meanwhile and after a failure.
export class GpuCodec {
	// `message`: opens the worker that `start()` returns. `codec`: the codec's worker. `key`: of the trial.
	constructor({ key, message, codec, start, onChange }) {
		Object.assign(this, { key, message, codec, start, onChange, worker: null, isOpen: false, isTrying: false, isUsed: false, reason: "" });
	}

	// At the start of a visit: uses a GPU that was faster in an earlier visit.
	resume() {
		if (readTrial(this.key)?.isFaster) this.open();
	}

	// After a speech, when all workers are idle: begins a trial.
	consider() {
		if (this.isOpen && !this.isTrying && !this.isUsed) this.offer(0);
		else if (!this.worker && this.message) this.open();
	}

	async open() {
		const { message } = this, { port1, port2 } = new MessageChannel(), worker = this.worker = this.start();
		this.message = null; // its buffers are transferred
		try {
			await new Promise((resolve, reject) => {
				setTimeout(reject, START_LIMIT_MS, new Error("too slow"));
				worker.onerror = (event) => reject(new Error(event.message));
				worker.onmessage = ({ data }) => (data.isOpen ? resolve() : reject(new Error(data.error)));
				worker.postMessage({ open: { ...message, provider: "webgpu", port: port1 } }, [port1, message.wasm, message.graph]);
			});
		} catch (error) {
			if (worker === this.worker) this.endTrial({ isFaster: false, error: error.message });
			return;
		}
		if (worker !== this.worker) return;
		worker.onerror = () => this.codec.postMessage({ drop: "The worker stopped." });
		this.isOpen = true;
		this.codec.postMessage({ connect: port2 }, [port2]);
		this.offer(readTrial(this.key)?.ownMs ?? 0);
	}

	// `ownMs`: of an earlier trial. 0 begins a trial, which ends without a result if the codec is busy.
	offer(ownMs) {
		this.codec.postMessage({ offer: { ownMs } });
		if (ownMs) this.use();
		else this.isTrying = true;
	}

	use() {
		this.isUsed = true;
		this.onChange();
	}

	// `trial`: {isFaster, ownMs}, or null if a speech began meanwhile: the next one is followed by another trial.
	endTrial(trial) {
		this.isTrying = false;
		if (!trial) return;
		writeTrial(this.key, trial);
		if (trial.isFaster) this.use();
		else this.lose(trial.error ?? "slower than WebAssembly");
	}

	// The GPU is not used any more in this visit. If it failed in use, the next visit tries it again.
	lose(reason) {
		if (this.isUsed) writeTrial(this.key, null);
		this.reason = reason;
		this.close();
		this.onChange();
	}

	close() {
		this.worker?.terminate();
		Object.assign(this, { worker: null, isOpen: false, isUsed: false });
	}
}
