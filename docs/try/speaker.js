// The voice on the main thread: text to token ids, and two workers for frames and samples.
import { loadAssets } from "./assets.js";
import { checkManifest } from "./model.js";
import { ScriptWriter } from "./script.js";
import { Tokenizer } from "./tokenizer.js";

const SIMD = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11);
const MAX_CODEC_THREADS = 4;

// Why this browser cannot speak; "" if it can.
export function whyUnable() {
	if (typeof WebAssembly !== "object") return "This browser has no WebAssembly, which runs the voice. It may be turned off in a strict security mode.";
	if (!WebAssembly.validate(SIMD)) return "This browser is too old: its WebAssembly has no SIMD. Use a browser from 2023 or later.";
	if (typeof DecompressionStream !== "function") return "This browser is too old: it cannot decompress the voice. Use a browser from 2023 or later.";
	return "";
}

export class Speaker {
	constructor(base) {
		Object.assign(this, { base, id: 0, request: null, opening: null });
	}

	// Downloads the voice and starts the workers, once. A failed attempt can be repeated.
	open(onProgress = () => {}) {
		this.opening ??= this.load(onProgress).catch((error) => {
			this.close();
			throw error;
		});
		return this.opening;
	}

	close() {
		this.frames?.terminate();
		this.codec?.terminate();
		this.opening = null;
	}

	async load(onProgress) {
		const unable = whyUnable();
		if (unable) throw new Error(unable);
		const files = await loadAssets(this.base, onProgress);
		const text = (name) => new TextDecoder().decode(files[name]), json = (name) => JSON.parse(text(name));
		const manifest = this.manifest = json("manifest.json");
		checkManifest(manifest);
		this.tokenizer = new Tokenizer(json("vocab.json"), text("merges.txt"));
		this.writer = new ScriptWriter(json("words.json"), json("abbreviations.json"), manifest.reading);
		this.numThreads = globalThis.crossOriginIsolated ? Math.max(1, Math.min(MAX_CODEC_THREADS, navigator.hardwareConcurrency - 1)) : 1;
		const { port1, port2 } = new MessageChannel();
		this.frames = this.start("frames-worker.js");
		this.codec = this.start("codec-worker.js");
		await Promise.all([
			this.send(this.frames, { port: port1, manifest, wasm: files["ort.wasm"].slice(), graph: files["frame.onnx"], numThreads: 1 }),
			this.send(this.codec, { port: port2, manifest, wasm: files["ort.wasm"], graph: files["codec.onnx"], numThreads: this.numThreads }),
		]);
	}

	start(name) { return new Worker(new URL(name, import.meta.url), { type: "module" }); }

	// Opens a worker's session. Later messages are chunks and errors.
	send(worker, message) {
		return new Promise((resolve, reject) => {
			worker.onerror = () => reject(new Error("A part of the page could not be started. Reload the page."));
			worker.onmessage = ({ data }) => {
				if (data.isOpen) {
					worker.onerror = ({ message: text }) => this.fail(new Error(text || "The voice stopped unexpectedly. Reload the page."));
					resolve();
				} else if (data.id === undefined && data.error) reject(new Error(data.error));
				else this.receive(data);
			};
			worker.postMessage({ open: message }, [message.port, message.wasm, message.graph]);
		});
	}

	// Utterances and pauses of a text, with token ids. Throws for a text that cannot be spoken.
	plan(text) {
		return this.writer.write(text).map((part) => (part.text === undefined ? part : { ...part, ids: this.tokenizer.encode(part.text) }));
	}

	// Speaks a text. `onSamples(samples, codes)` gets 16-bit samples in order; silence has no codes.
	// Resolves to whether the speech came to its end: a stop or another text ends it early.
	speak(text, { voice, seed, onSamples }) {
		this.stop();
		const parts = this.plan(text), id = ++this.id;
		const utterances = parts.filter((part) => part.ids).map((part) => part.ids);
		return new Promise((resolve, reject) => {
			this.request = { id, parts, onSamples, resolve, reject };
			this.codec.postMessage({ begin: id });
			this.frames.postMessage({ speak: { id, utterances, voice, seed } });
		});
	}

	stop() {
		if (!this.request) return;
		const { resolve } = this.request;
		this.request = null;
		this.frames.postMessage({ stop: true });
		this.codec.postMessage({ begin: 0 });
		resolve(false);
	}

	receive({ id, samples, codes, isLast, error }) {
		const { request } = this;
		if (!request || id !== request.id) return;
		if (error) return this.fail(new Error(error));
		if (samples.length) request.onSamples(samples, codes);
		if (!isLast) return;
		request.parts.shift();
		if (!request.parts.length) {
			this.request = null;
			return request.resolve(true);
		}
		request.onSamples(this.silence(request.parts.shift().pause), null);
	}

	fail(error) {
		const { request } = this;
		if (!request) return;
		this.request = null;
		this.frames.postMessage({ stop: true });
		this.codec.postMessage({ begin: 0 });
		request.reject(error);
	}

	// A pause with the noise level of the voice. Digital zeros would sound like a dropout.
	silence(seconds) {
		const { sample_rate: rate, reading: { silence_rms: level = 0 } } = this.manifest;
		const draw = () => (Math.random() + Math.random() + Math.random() + Math.random() - 2) * Math.sqrt(3);
		return Int16Array.from({ length: Math.round(seconds * rate) }, () => Math.round(draw() * level * 32767));
	}
}
