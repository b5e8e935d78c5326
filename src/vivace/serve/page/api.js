// Requests to the server. Addresses are relative, so the page works under any path.
const base = new URL("../v1/", import.meta.url);

let key = "";
try { key = sessionStorage.getItem("vivace.key") ?? ""; } catch { /* storage may be forbidden */ }

export const hasKey = () => key !== "";
export const setKey = (value) => {
	key = value.trim();
	try { sessionStorage.setItem("vivace.key", key); } catch { /* it lasts until a reload */ }
};

export class ApiError extends Error {
	constructor(message, status = 0) {
		super(message);
		this.status = status;
	}
}

async function call(path, options = {}) {
	const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
	let answer;
	try {
		answer = await fetch(new URL(path, base), { ...options, headers });
	} catch (error) {
		if (error.name === "AbortError") throw error;
		throw new ApiError("The server does not answer.");
	}
	if (answer.ok) return answer;
	const body = await answer.json().catch(() => null);
	const retry = answer.headers.get("Retry-After");
	const said = body?.error?.message ?? `The server answered ${answer.status}.`;
	throw new ApiError(said + (retry ? ` Try again in ${retry} s.` : ""), answer.status);
}

const post = (path, body, signal) => call(path, {
	method: "POST", signal, body: JSON.stringify(body), headers: { "Content-Type": "application/json" },
});

export const getModels = async () => (await (await call("audio/models")).json()).models;
export const getVoices = async (model) =>
	(await (await call(`audio/voices?model=${encodeURIComponent(model)}`)).json()).voices;
export const deleteVoice = (id) => call(`audio/voices/${encodeURIComponent(id)}`, { method: "DELETE" });

export async function makeVoice(fields) {
	const form = new FormData();
	for (const [name, value] of Object.entries(fields)) {
		if (value instanceof Blob) form.append(name, value, "sample.wav");
		else if (value) form.append(name, value);
	}
	return (await call("audio/voices", { method: "POST", body: form })).json();
}

// Calls back for every event: audio, and words whose audio is complete.
export async function* speak(request, signal) {
	const how = { response_format: "pcm", stream_format: "sse", word_timestamps: true };
	const answer = await post("audio/speech", { ...request, ...how }, signal);
	const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
	let text = "";
	for (;;) {
		let part;
		try {
			part = await reader.read();
		} catch (error) {
			if (error.name === "AbortError") throw error;
			throw new ApiError("The speech broke off: the server ended the stream early.");
		}
		if (part.done) return;
		const events = (text + part.value).split("\n\n");
		text = events.pop();
		for (const event of events) {
			const { audio, words, error } = JSON.parse(event.slice(event.indexOf("{")));
			if (error) throw new ApiError(error.message);
			yield { words, bytes: audio && Uint8Array.from(atob(audio), (char) => char.charCodeAt()) };
		}
	}
}

// Browsers cannot set headers on a WebSocket, so the key is sent as a subprotocol.
export function openSocket() {
	const url = new URL("audio/speech/stream", base);
	url.protocol = url.protocol.replace("http", "ws");
	const socket = new WebSocket(url, key ? ["vivace", `vivace-key.${encodeKey(key)}`] : ["vivace"]);
	socket.binaryType = "arraybuffer";
	return socket;
}

// A subprotocol must be an HTTP token; base64url is one.
const encodeKey = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)))
	.replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
