// A jitter buffer: playback starts once enough samples are queued; after an underrun it waits for
// three times as many.
const FIRST_WAIT_S = 0.08, LONGEST_WAIT_S = 3;
const FADE = 128; // length of the fade-out in samples; an abrupt stop would click

export class Ring {
	constructor(rate, seconds = 45) {
		this.samples = new Float32Array(Math.ceil(rate * seconds));
		this.rate = rate;
		this.reset(0);
	}

	reset(id) {
		Object.assign(this, { id, start: 0, queued: 0, played: 0, gaps: 0, isEnded: false,
			isWaiting: true, isDry: false, wait: FIRST_WAIT_S * this.rate });
	}

	// The caller tracks playback and never queues more than the capacity.
	push(samples) {
		const size = this.samples.length, at = (this.start + this.queued) % size;
		const head = Math.min(samples.length, size - at);
		this.samples.set(samples.subarray(0, head), at);
		this.samples.set(samples.subarray(head), 0);
		this.queued += samples.length;
	}

	take(message) {
		if (message.push) this.push(message.push);
		if (message.end !== undefined) this.isEnded = message.end;
		if (message.reset !== undefined) {
			if (!this.isWaiting) this.tail = this.peek(new Float32Array(FADE)).map((s, i) => s * (1 - i / FADE));
			this.reset(message.reset);
		}
	}

	// Copies the next samples to the start of `out` and fills the rest with silence.
	peek(out) {
		const count = Math.min(out.length, this.queued);
		for (let i = 0; i < count; i++) out[i] = this.samples[(this.start + i) % this.samples.length];
		return out.fill(0, count);
	}

	// Fills `out` with the next samples or silence; true when the state changed.
	pull(out) {
		const was = this.isWaiting;
		if (this.isWaiting && this.queued && (this.isEnded || this.queued >= this.wait)) {
			this.isWaiting = false;
			if (this.isDry) this.gaps++; // an empty buffer is a gap only if more audio follows
		}
		const count = this.isWaiting ? 0 : Math.min(out.length, this.queued);
		if (count) this.peek(out);
		else out.fill(0);
		this.tail?.forEach((sample, i) => { out[i] += sample; });
		this.tail = null;
		this.start = (this.start + count) % this.samples.length;
		this.queued -= count;
		this.played += count;
		if (!this.isWaiting && count < out.length) {
			this.isWaiting = this.isDry = true;
			this.wait = Math.min(this.wait * 3, LONGEST_WAIT_S * this.rate);
		}
		return was !== this.isWaiting;
	}

	get state() {
		const { id, queued, played, gaps, isEnded, isWaiting } = this;
		return { id, played, gaps, isWaiting, isDone: isEnded && isWaiting && !queued };
	}
}
