// Decodes frames to samples in a worker of its own, while the other worker makes the next frames.
import { Decoder } from "./model.js";
import { openSession } from "./runtime.js";

let runtime = null, manifest = null, decoder = null, current = 0;
const waiting = []; // chunks in order: a run must end before the next one begins
let isBusy = false;

async function work() {
	if (isBusy) return;
	isBusy = true;
	while (waiting.length) {
		const { id, number, codes, isLast } = waiting.shift();
		if (id !== current) continue;
		try {
			decoder ??= new Decoder(runtime.ort, manifest, runtime.session);
			const samples = codes.length ? toInt16(await decoder.decode(codes)) : new Int16Array(0);
			if (isLast) decoder = null;
			postMessage({ id, number, samples, codes, isLast }, [samples.buffer]);
		} catch (error) {
			decoder = null;
			postMessage({ id, error: error?.message ?? String(error) });
		}
		await new Promise((resolve) => { setTimeout(resolve); }); // lets a stop arrive
	}
	isBusy = false;
}

function toInt16(floats) {
	return Int16Array.from(floats, (value) => Math.round(Math.max(-1, Math.min(1, value)) * 32767));
}

onmessage = async ({ data }) => {
	if (data.begin !== undefined) {
		[current, decoder] = [data.begin, null];
		waiting.length = 0;
	}
	if (!data.open) return;
	try {
		const { port, manifest: own, ...files } = data.open;
		[runtime, manifest] = [await openSession(files), own];
		const first = new Decoder(runtime.ort, manifest, runtime.session);
		for (const count of [1, 8]) await first.decode(new Int32Array(count * manifest.num_codebooks)); // the first run is slow
		port.onmessage = (event) => { waiting.push(event.data); work(); };
		postMessage({ isOpen: true });
	} catch (error) {
		postMessage({ error: error?.message ?? String(error) });
	}
};
