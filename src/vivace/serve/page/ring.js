// Samples between the network and the sound card. It plays once enough is queued, and after a gap
// it waits for thrice as much.
const FIRST_WAIT_S = 0.08, LONGEST_WAIT_S = 3;
const FADE = 128; // samples that a stop takes: a cut would click

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

	// The caller never queues more than fits: it knows what was played.
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

	// Copies the next samples to the start of `out`; what it has too much is silent.
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
			if (this.isDry) this.gaps++; // nothing is missed unless more follows
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
