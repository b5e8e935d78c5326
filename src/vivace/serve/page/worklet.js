import { Ring } from "./ring.js";

const REPORT_SAMPLES = 1024; // about 40 ms

registerProcessor("vivace-player", class extends AudioWorkletProcessor {
	constructor() {
		super();
		this.ring = new Ring(sampleRate);
		this.unreported = 0;
		this.port.onmessage = ({ data }) => { this.ring.take(data); this.isNews = true; };
	}

	process(inputs, [[out, ...others]]) {
		this.isNews = this.ring.pull(out) || this.isNews;
		for (const other of others) other.set(out);
		this.unreported += out.length;
		if (this.isNews || (this.unreported >= REPORT_SAMPLES && !this.ring.isWaiting)) {
			[this.unreported, this.isNews] = [0, false];
			this.port.postMessage(this.ring.state);
		}
		return true;
	}
});

registerProcessor("vivace-recorder", class extends AudioWorkletProcessor {
	process([[samples]]) {
		if (samples) this.port.postMessage(samples.slice());
		return true;
	}
});
