// Starts onnxruntime-web in a worker and opens one graph.

// `wasm`, `graph`: ArrayBuffers. `build`: "wasm", or "jspi", which has WebGPU too. `provider`: "wasm" or
// "webgpu". One thread needs no cross-origin isolation.
export async function openSession({ wasm, graph, build = "wasm", provider = "wasm", numThreads = 1 }) {
	const ort = await import(`./ort/ort.${build}.bundle.min.mjs`);
	Object.assign(ort.env.wasm, { wasmBinary: wasm, numThreads });
	ort.env.logLevel = "error";
	const session = await ort.InferenceSession.create(new Uint8Array(graph), { executionProviders: [provider] });
	return { ort, session };
}

// Lets the worker receive messages. A run of the graph does not.
export const nextTask = () => new Promise((resolve) => {
	const { port1, port2 } = new MessageChannel();
	port1.onmessage = () => { port1.close(); resolve(); };
	port2.postMessage(null);
});
