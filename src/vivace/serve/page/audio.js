// Track stores received audio, Player plays a track while it grows, Recorder records the microphone.
import { Ring } from "./ring.js";

const AHEAD_S = 30; // of the ring's 45 s
const REST_MS = 10000;
export const PEAK_S = 0.02;
const here = (name) => new URL(name, import.meta.url);

// A growing array of 16-bit samples, and one peak every 20 ms for the waveform.
export class Track {
	// `provenance`: what the server said about the origin of the speech; null: nothing.
	constructor(rate, provenance) {
		this.rate = rate;
		this.provenance = provenance;
		this.samples = new Int16Array(rate * 16);
		this.length = 0;
		this.peaks = [];
		this.isEnded = false;
	}

	get seconds() { return this.length / this.rate; }

	add(samples) {
		if (this.length + samples.length > this.samples.length) {
			const larger = new Int16Array(2 * (this.length + samples.length));
			larger.set(this.samples.subarray(0, this.length));
			this.samples = larger;
		}
		this.samples.set(samples, this.length);
		this.length += samples.length;
		const step = Math.round(this.rate * PEAK_S);
		for (let at = this.peaks.length * step; at + step <= this.length; at += step) {
			let peak = 0;
			for (let i = at; i < at + step; i++) peak = Math.max(peak, Math.abs(this.samples[i]));
			this.peaks.push(peak / 32768);
		}
	}

	floats(from, to) {
		const floats = new Float32Array(to - from);
		for (let i = 0; i < floats.length; i++) floats[i] = this.samples[from + i] / 32768;
		return floats;
	}

	// `comment`: ASCII text in the file's metadata (INFO chunk); "" writes no metadata.
	toWav(comment = "") {
		const data = this.samples.slice(0, this.length), info = infoChunk(comment);
		const head = new DataView(new ArrayBuffer(44));
		const words = [0x46464952, 36 + info.length + data.byteLength, 0x45564157, 0x20746d66, 16, 0x10001, // RIFF WAVE fmt
			this.rate, 2 * this.rate, 0x100002, 0x61746164, data.byteLength]; // data
		words.forEach((word, i) => head.setUint32(4 * i, word, true));
		return new Blob([head.buffer.slice(0, 36), info, head.buffer.slice(36), data], { type: "audio/wav" });
	}
}

// LIST chunk of a WAV file with one comment, ended by a zero and padded to an even length.
function infoChunk(comment) {
	if (!comment) return new Uint8Array(0);
	const text = comment.padEnd(comment.length + 2 - (comment.length % 2), "\0");
	const word = (value) => String.fromCharCode(...[0, 8, 16, 24].map((shift) => (value >> shift) & 255));
	return Uint8Array.from(`LIST${word(12 + text.length)}INFOICMT${word(text.length)}${text}`, (c) => c.charCodeAt(0));
}

export class Player extends EventTarget {
	constructor() {
		super();
		this.track = null;
		this.id = 0;
		this.base = this.cursor = 0;
		this.volume = 1;
		this.isPaused = false;
		this.state = { played: 0, gaps: 0, isWaiting: true, isDone: true };
	}

	// Call it inside a user gesture; otherwise the browser keeps the context suspended.
	async open(rate) {
		if (this.context?.sampleRate !== rate) {
			this.context?.close();
			this.context = new AudioContext({ sampleRate: rate, latencyHint: "interactive" });
			this.gain = this.context.createGain();
			this.gain.connect(this.context.destination);
			this.setVolume(this.volume);
			this.sink = this.connect(this.context);
		}
		this.isPaused = false;
		this.context.resume(); // not awaited: without an audio device the promise never settles
		this.rest();
		this.send = await this.sink;
	}

	pause() {
		this.isPaused = true;
		this.context.suspend();
	}

	// From 0 to 1. Its square is closer to perceived loudness.
	setVolume(volume) {
		this.volume = volume;
		if (this.gain) this.gain.gain.value = volume ** 2;
	}

	// A running context drains a phone's battery even if nothing plays.
	rest() {
		clearTimeout(this.timer);
		this.timer = setTimeout(() => (this.isPlaying ? this.rest() : this.context.suspend()), REST_MS);
	}

	async connect(context) {
		if (!context.audioWorklet) return this.connectOld(context);
		await context.audioWorklet.addModule(here("worklet.js"));
		const node = new AudioWorkletNode(context, "vivace-player", { numberOfInputs: 0 });
		node.port.onmessage = ({ data }) => this.report(data);
		node.connect(this.gain);
		return (message) => node.port.postMessage(message, message.push ? [message.push.buffer] : []);
	}

	// Over plain HTTP from another machine, browsers offer no AudioWorklet.
	connectOld(context) {
		const ring = new Ring(context.sampleRate);
		const node = this.node = context.createScriptProcessor(1024, 0, 1);
		node.onaudioprocess = ({ outputBuffer }) => {
			const isNews = ring.pull(outputBuffer.getChannelData(0));
			if (isNews || !ring.isWaiting || ring.state.isDone) this.report(ring.state);
		};
		node.connect(this.gain);
		return (message) => ring.take(message);
	}

	async play(track, from = 0) {
		this.stop();
		this.state = { played: 0, gaps: 0, isWaiting: true, isDone: false };
		Object.assign(this, { track, hasEnded: false, hasStarted: false, isOpen: false });
		this.base = this.cursor = Math.floor(from);
		const id = ++this.id;
		await this.open(track.rate);
		if (this.id !== id) return; // playback stopped while the context was opening
		this.send({ reset: id });
		this.isOpen = true;
		this.feed();
	}

	// Called after the track grows and at every report of the worklet.
	feed() {
		const { track } = this;
		if (!this.isPlaying || !this.isOpen) return;
		const limit = this.base + this.state.played + AHEAD_S * track.rate;
		const to = Math.min(track.length, Math.floor(limit));
		if (to > this.cursor) {
			this.send({ push: track.floats(this.cursor, to) });
			this.cursor = to;
		}
		const hasEnded = track.isEnded && this.cursor === track.length;
		if (hasEnded !== this.hasEnded) this.send({ end: this.hasEnded = hasEnded });
	}

	report(state) {
		if (state.id !== this.id || this.state.isDone) return;
		this.state = { ...state, at: this.context.currentTime };
		if (state.played && !this.hasStarted) {
			this.hasStarted = true;
			this.dispatchEvent(new Event("start"));
		}
		this.feed();
		if (state.isDone) this.dispatchEvent(new Event("done"));
	}

	stop() {
		this.isPaused = false;
		if (this.state.isDone) return;
		this.state = { ...this.state, isDone: true };
		this.send?.({ reset: ++this.id });
	}

	get isPlaying() { return !this.state.isDone; }

	// Position in the track, in seconds.
	get position() {
		if (!this.track) return 0;
		const { played, isWaiting, isDone, at } = this.state;
		const since = isWaiting || isDone || !at ? 0 : Math.min(this.context.currentTime - at, 0.1);
		return Math.min((this.base + played) / this.track.rate + since, this.track.seconds);
	}
}

export function whyNoRecording() {
	if (!window.isSecureContext) return "To record, open this page over https or on the server's own machine. A file works here too.";
	return navigator.mediaDevices && window.AudioWorkletNode ? "" : "This browser cannot record. Choose a file instead.";
}

// Records mono PCM at the microphone's rate, so that the server need not decode WebM.
export async function record(maxSeconds, onGrow) {
	const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };
	const stream = await navigator.mediaDevices.getUserMedia({ audio });
	const context = new AudioContext();
	await context.audioWorklet.addModule(here("worklet.js"));
	const node = new AudioWorkletNode(context, "vivace-recorder", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
	context.createMediaStreamSource(stream).connect(node);
	context.resume();
	const track = new Track(context.sampleRate);
	return new Promise((resolve) => {
		const stop = () => {
			stream.getTracks().forEach((each) => each.stop());
			node.port.onmessage = null;
			context.close();
			resolve(track);
		};
		node.port.onmessage = ({ data }) => {
			track.add(Int16Array.from(data, toInt16));
			if (track.seconds >= maxSeconds) stop();
			else onGrow(track, stop);
		};
	});
}

const toInt16 = (value) => Math.round(Math.max(-1, Math.min(1, value)) * 32767);

// Decodes any file that the browser supports to mono at 24 kHz.
export async function decode(file, maxSeconds) {
	const context = new OfflineAudioContext(1, 1, 24000);
	const buffer = await context.decodeAudioData(await file.arrayBuffer());
	const track = new Track(24000);
	const mono = new Float32Array(Math.min(buffer.length, maxSeconds * 24000));
	for (let channel = 0; channel < buffer.numberOfChannels; channel++) {
		const samples = buffer.getChannelData(channel);
		for (let i = 0; i < mono.length; i++) mono[i] += samples[i] / buffer.numberOfChannels;
	}
	track.add(Int16Array.from(mono, toInt16));
	return track;
}
