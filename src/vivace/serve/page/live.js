// Live mode: sends words as they are typed and receives speech over the same WebSocket.
import { ApiError, openSocket, whyNoSocket } from "./api.js";

const WORD_PAUSE_MS = 700; // after this pause, a word without a trailing space counts as complete
const SENTENCE_PAUSE_MS = 1600; // after this pause, the utterance ends

const wholeWords = (text) => text.replace(/[^\s.,;:!?…。，！？、]+$/, "");

function shared(one, other) {
	let count = 0;
	while (count < one.length && one[count] === other[count]) count++;
	return one.slice(0, count);
}

export class Live {
	// `page`: start(rate, provenance), grow(bytes), noteLosses(report), end(), fail(error)
	constructor(page) {
		Object.assign(this, { page, sent: "", isOpen: false, isSounding: false, saidAt: 0 });
	}

	get isBusy() { return this.isOpen || this.isSounding; }

	// Called with the whole text after every change, and with the current settings. A corrected last
	// word is spoken again; other changes to sent text have no effect.
	type(text, request, isAtEnd = true) {
		clearTimeout(this.timer);
		const isCut = this.sent.startsWith(text);
		if (!text.startsWith(this.sent)) this.sent = wholeWords(isAtEnd ? shared(text, this.sent) : text);
		const complete = wholeWords(text.slice(this.sent.length));
		if (complete.trim() && !isCut) this.say(complete, request);
		if (this.isOpen || text.slice(this.sent.length).trim()) {
			this.timer = setTimeout(() => this.pause(isCut ? this.sent : text, request), WORD_PAUSE_MS);
		}
	}

	pause(text, request) {
		const rest = text.slice(this.sent.length), isSentence = /[.!?…。！？]["'”’)\]]*\s*$/.test(text);
		if (rest.trim()) this.say(rest, request);
		this.timer = setTimeout(() => this.finish(), isSentence ? 0 : SENTENCE_PAUSE_MS);
	}

	say(piece, request) {
		const config = JSON.stringify({ type: "session.config", ...request, response_format: "pcm" });
		if (!this.socket || (config !== this.config && !this.isBusy)) this.connect(config);
		if (!this.isBusy) this.saidAt = performance.now();
		this.sent += piece;
		this.isOpen = true;
		this.write({ type: "input.text", text: piece });
	}

	// Ends the text of the current utterance.
	finish() {
		clearTimeout(this.timer);
		if (this.isOpen) this.write({ type: "input.done" });
		this.isSounding ||= this.isOpen;
		this.isOpen = false;
	}

	cancel() {
		clearTimeout(this.timer);
		if (!this.isBusy) return;
		this.write({ type: "input.cancel" });
		this.isMuted = true; // until the server confirms the cancellation
		this.isOpen = this.isSounding = false;
		this.page.end();
	}

	connect(config) {
		this.close();
		const socket = this.socket = openSocket();
		this.config = config;
		this.waiting = [config];
		socket.onopen = () => {
			this.waiting.forEach((message) => socket.send(message));
			this.waiting = null;
		};
		socket.onmessage = ({ data }) => { if (this.socket === socket) this.take(data); };
		socket.onclose = async ({ reason }) => {
			if (this.socket !== socket) return;
			const { isBusy, waiting } = this;
			this.close();
			if (!isBusy) return;
			this.page.fail(waiting ? await whyNoSocket() : ApiError.of({ message: reason || "The connection was closed" }));
		};
	}

	write(message) {
		const text = JSON.stringify(message);
		if (this.waiting) this.waiting.push(text);
		else this.socket.send(text);
	}

	take(data) {
		if (typeof data !== "string") {
			if (!this.isMuted) this.page.grow(data);
			return;
		}
		const report = JSON.parse(data), { type, message, code, sample_rate: rate, provenance } = report;
		if (type === "audio.cancelled") this.isMuted = false;
		else if (type === "error") {
			this.close();
			this.page.fail(ApiError.of({ message, code }));
		} else if (this.isMuted) return;
		else if (type === "audio.start") {
			this.isSounding = true;
			this.page.start(rate, provenance ?? null);
		} else if (type === "audio.done") this.page.noteLosses(report);
		else if (type === "session.done") {
			this.isSounding = false;
			if (!this.isOpen) this.page.end();
		}
	}

	close() {
		clearTimeout(this.timer);
		const { socket, isBusy } = this;
		Object.assign(this, { socket: null, isOpen: false, isSounding: false, isMuted: false, waiting: null });
		socket?.close();
		if (isBusy) this.page.end();
	}
}
