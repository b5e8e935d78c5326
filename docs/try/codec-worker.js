// Decodes frames to samples in a worker of its own, while the other worker makes the next frames.
import { compareSessions, inTurn, RemoteSession, SwitchingSession } from "./codec-session.js";
import { CHUNKS, Decoder } from "./model.js";
import { openSession } from "./runtime.js";

let runtime = null, manifest = null, session = null, other = null, decoder = null, current = 0;
const waiting = []; // chunks in order: a run must end before the next one begins
let isBusy = false;

async function work() {
	if (isBusy) return;
	isBusy = true;
	while (waiting.length) {
		const { id, number, codes, isLast } = waiting.shift();
		if (id !== current) continue;
		try {
			decoder ??= new Decoder(runtime.ort, manifest, session);
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

async function open({ port, manifest: own, ...files }) {
	[runtime, manifest] = [await openSession(files), own];
	runtime.session = inTurn(runtime.session); // a trial may be running when a chunk arrives
	session = new SwitchingSession(runtime.session, (reason) => postMessage({ dropped: reason }));
	const first = new Decoder(runtime.ort, manifest, session);
	for (const count of [CHUNKS[0], CHUNKS.at(-1)]) await first.decode(new Int32Array(count * manifest.num_codebooks)); // the first run is slow
	port.onmessage = (event) => { waiting.push(event.data); work(); };
}

// Uses the other session if it is faster. `ownMs`: of an earlier trial; without it there is one now.
async function offer({ ownMs }) {
	if (ownMs) return session.use(other, ownMs);
	const isIdle = () => !isBusy && !waiting.length;
	try {
		const trial = await compareSessions({ ort: runtime.ort, manifest, own: runtime.session, other, isIdle });
		if (trial?.isFaster) session.use(other, trial.ownMs);
		postMessage({ trial });
	} catch (error) {
		postMessage({ trial: { isFaster: false, error: error?.message ?? String(error) } });
	}
}

onmessage = async ({ data }) => {
	if (data.begin !== undefined) {
		[current, decoder] = [data.begin, null];
		waiting.length = 0;
	}
	if (data.connect) other = new RemoteSession(runtime.ort, data.connect);
	if (data.offer) await offer(data.offer);
	if (data.drop) session?.drop(data.drop);
	if (!data.open) return;
	try {
		await open(data.open);
		postMessage({ isOpen: true });
	} catch (error) {
		postMessage({ error: error?.message ?? String(error) });
	}
};
