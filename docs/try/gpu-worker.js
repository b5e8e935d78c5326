// Runs codec.onnx on WebGPU, for the codec's worker.
import { inTurn } from "./codec-session.js";
import { CHUNKS, Decoder } from "./model.js";
import { openSession } from "./runtime.js";

async function open({ port, manifest, ...files }) {
	const { ort, session: own } = await openSession(files), session = inTurn(own); // a late run may not have ended
	ort.env.webgpu.device?.lost.then(({ message }) => port.postMessage({ isLost: true, error: message || "The GPU was lost." }));
	const decoder = new Decoder(ort, manifest, session);
	for (let count = CHUNKS.at(-1); count; count--) await decoder.decode(new Int32Array(count * manifest.num_codebooks)); // compiles shaders
	port.onmessage = async ({ data: { number, codes, numFrames, state } }) => {
		try {
			const made = await new Decoder(ort, manifest, session, { numFrames, state }).run(codes);
			port.postMessage({ number, samples: made.samples.data, state: made.new_state.data });
		} catch (error) {
			port.postMessage({ number, error: error?.message ?? String(error) });
		}
	};
}

onmessage = async ({ data }) => {
	try {
		await open(data.open);
		postMessage({ isOpen: true });
	} catch (error) {
		postMessage({ error: error?.message ?? String(error) });
	}
};
