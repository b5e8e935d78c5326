// Starts onnxruntime-web in a worker and opens one graph.
import * as ort from "./ort/ort.wasm.bundle.min.mjs";

// `wasm`, `graph`: ArrayBuffers. One thread needs no cross-origin isolation.
export async function openSession({ wasm, graph, numThreads }) {
	Object.assign(ort.env.wasm, { wasmBinary: wasm, numThreads });
	ort.env.logLevel = "error";
	const session = await ort.InferenceSession.create(new Uint8Array(graph), { executionProviders: ["wasm"] });
	return { ort, session };
}

// Lets the worker receive messages. A run of the graph does not.
export const nextTask = () => new Promise((resolve) => {
	const { port1, port2 } = new MessageChannel();
	port1.onmessage = () => { port1.close(); resolve(); };
	port2.postMessage(null);
});
