// Makes frames in a worker of its own and sends them to the codec's worker, a few at a time.
import { CHUNKS, FrameModel } from "./model.js";
import { nextTask, openSession } from "./runtime.js";

let model = null, codec = null, current = 0; // `current`: the id of the last request

async function open({ port, manifest, ...files }) {
	const { ort, session } = await openSession(files);
	model = new FrameModel(ort, manifest, session);
	codec = port;
	for await (const _ of model.frames([manifest.prompt.pad_id], { voice: model.voices[0], seed: 0 })) break; // the first run is slow
}

// Speaks the utterances of a request in order. Utterance n uses seed + n, as in the package.
async function speak({ id, utterances, voice, seed }) {
	for (const [number, ids] of utterances.entries()) {
		let pending = [], chunk = 0;
		for await (const codes of model.frames(ids, { voice, seed: (seed + number) % 2 ** 53 })) {
			await nextTask();
			if (current !== id) return;
			pending.push(...codes);
			if (pending.length < CHUNKS[Math.min(chunk, CHUNKS.length - 1)] * codes.length) continue;
			chunk++;
			codec.postMessage({ id, number, codes: Int32Array.from(pending) });
			pending = [];
		}
		codec.postMessage({ id, number, codes: Int32Array.from(pending), isLast: true });
	}
}

onmessage = async ({ data }) => {
	try {
		if (data.open) {
			await open(data.open);
			postMessage({ isOpen: true });
		}
		if (data.stop) current = 0;
		if (data.speak) {
			current = data.speak.id;
			await speak(data.speak);
		}
	} catch (error) {
		postMessage({ id: data.speak?.id, error: error?.message ?? String(error) });
	}
};
