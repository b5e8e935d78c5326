// The voice on the main thread: text to token ids, and two workers for frames and samples.
import { getList, loadAssets, missingBytes } from "./assets.js";
import { findAdapter, GpuCodec, isRuledOut } from "./gpu.js";
import { numCodecThreads } from "./isolation.js";
import { checkManifest } from "./model.js";
import { Tokenizer } from "./tokenizer.js";

const SIMD = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11);

// Why this browser cannot speak; "" if it can.
export function whyUnable() {
	if (typeof WebAssembly !== "object") return "This browser has no WebAssembly, which runs the voice. It may be turned off in a strict security mode.";
	if (!WebAssembly.validate(SIMD)) return "This browser is too old: its WebAssembly has no SIMD. Use a browser from 2023 or later.";
	if (typeof DecompressionStream !== "function") return "This browser is too old: it cannot decompress the voice. Use a browser from 2023 or later.";
	return "";
}

export class Speaker {
	// `onDevice()` is called when `device` changes.
	constructor(base, onDevice = () => {}) {
		Object.assign(this, { base, onDevice, id: 0, request: null, opening: null, list: null, adapter: "", gpu: null });
	}

	// What runs the voice, in words.
	get device() {
		const threads = this.numThreads > 1 ? `, ${1 + this.numThreads} threads` : "";
		return `this browser (WebAssembly${threads}${this.gpu?.isUsed ? " and WebGPU" : ""})`;
	}

	// Reads the list of files and looks for a GPU. Returns false if this copy of the page has no voice.
	async prepare() {
		[this.list, this.adapter] = await Promise.all([getList(this.base), this.adapter || findAdapter()]);
		return Boolean(this.list);
	}

	// Of the first speech; 0 if an earlier visit has downloaded the voice.
	get downloadBytes() { return missingBytes(this.base, this.list, Boolean(this.adapter)); }

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
		this.gpu?.close();
		this.opening = this.gpu = null;
	}

	async load(onProgress) {
		const unable = whyUnable();
		if (unable) throw new Error(unable);
		if (!this.list && !await this.prepare()) throw new Error("This copy of the page has no voice.");
		const files = await loadAssets(this.base, this.list, Boolean(this.adapter), onProgress);
		const text = (name) => new TextDecoder().decode(files[name]), json = (name) => JSON.parse(text(name));
		const manifest = this.manifest = json("manifest.json");
		checkManifest(manifest);
		this.tokenizer = new Tokenizer(json("vocab.json"), text("merges.txt"));
		const { ScriptWriter } = await import("./script.js"); // large: not before the first speech
		this.writer = new ScriptWriter(manifest.reading);
		this.numThreads = numCodecThreads();
		const build = files["ort.jspi.wasm"] ? "jspi" : "wasm", wasm = files["ort.jspi.wasm"] ?? files["ort.wasm"];
		const { port1, port2 } = new MessageChannel();
		this.frames = this.start("frames-worker.js");
		this.codec = this.start("codec-worker.js");
		if (build === "jspi" && !isRuledOut(this.trialKey)) this.gpu = this.makeGpu({ manifest, build, wasm: wasm.slice(), graph: files["codec.onnx"].slice() });
		await Promise.all([
			this.send(this.frames, { port: port1, manifest, build, wasm: wasm.slice(), graph: files["frame.onnx"] }),
			this.send(this.codec, { port: port2, manifest, build, wasm, graph: files["codec.onnx"], numThreads: this.numThreads }),
		]);
		this.gpu?.resume();
	}

	// A trial of the GPU holds for this adapter, build and codec.
	get trialKey() {
		const files = [...Object.values(this.list.webgpu_files), this.list.files["codec.onnx.gz"]];
		return [this.adapter, ...files.map(({ sha256 }) => sha256.slice(0, 8))].join("/");
	}

	makeGpu(message) {
		return new GpuCodec({ key: this.trialKey, message, codec: this.codec, start: () => this.start("gpu-worker.js"), onChange: this.onDevice });
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
				else if (data.trial !== undefined) this.gpu?.endTrial(data.trial);
				else if (data.dropped) this.gpu?.lose(data.dropped);
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
			this.gpu?.consider();
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
