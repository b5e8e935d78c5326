// Requests to the server. Addresses are relative, so the page works under any path.
const base = new URL("v1/", document.baseURI);
const PROVENANCE = "x-vivace-provenance"; // that audio is AI-generated; absent with --mark none
export const apiUrl = (path) => new URL(path, base).href;

// Messages for users, by error code, that replace messages for programs.
const MESSAGES = {
	queue_full: "The server is busy.",
	crowded: "The server is busy.",
	rate_limited: "Too many requests in one minute.",
	loading: "The model is still loading.",
	runaway: "The speech did not come to an end. Change the text a little and try again.",
};

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

	// From the `error` object of a response or of an event.
	static of({ message = "", code } = {}, status = 0, retry = null) {
		let said = MESSAGES[code] ?? message.replace(/[;,]? (try again|retry later).*$/i, ""); // added below
		if (!/[.!?]$/.test(said)) said += ".";
		if (retry) said += ` Try again in ${retry} second${retry === "1" ? "" : "s"}.`;
		return new ApiError(said[0].toUpperCase() + said.slice(1), status);
	}
}

async function call(path, options = {}) {
	const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
	let answer;
	try {
		answer = await fetch(apiUrl(path), { ...options, headers });
	} catch (error) {
		if (error.name === "AbortError") throw error;
		throw new ApiError("The server does not answer. Check that it is running, then try again.");
	}
	if (answer.ok) return answer;
	const body = await answer.json().catch(() => null);
	const error = body?.error ?? { message: `The server answered ${answer.status}` };
	throw ApiError.of(error, answer.status, answer.headers.get("Retry-After"));
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

// The same audio in another format. The file says that it is AI-generated if the speech did.
export async function encode(track, format) {
	const body = track.samples.slice(0, track.length);
	return (await call(`audio/encode?response_format=${format}&sample_rate=${track.rate}`, {
		method: "POST", body,
		headers: { "Content-Type": "audio/pcm", ...(track.provenance && { [PROVENANCE]: track.provenance }) },
	})).blob();
}

// Yields every event: audio, words whose audio is complete, and at the end the usage; and what the response says about the origin.
export async function* speak(request, signal) {
	const how = { response_format: "pcm", stream_format: "sse", word_timestamps: true };
	const answer = await post("audio/speech", { ...request, ...how }, signal);
	const provenance = answer.headers.get(PROVENANCE);
	const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
	let text = "";
	for (;;) {
		let part;
		try {
			part = await reader.read();
		} catch (error) {
			if (error.name === "AbortError") throw error;
			throw new ApiError("The speech broke off before its end. Try again.");
		}
		if (part.done) return;
		const events = (text + part.value).split("\n\n");
		text = events.pop();
		for (const event of events) {
			const { audio, words, usage, error } = JSON.parse(event.slice(event.indexOf("{")));
			if (error) throw ApiError.of(error);
			yield { words, usage, provenance, bytes: audio && Uint8Array.from(atob(audio), (char) => char.charCodeAt()) };
		}
	}
}

// Browsers cannot set headers on a WebSocket, so the key is sent as a subprotocol.
export function openSocket() {
	const url = new URL(apiUrl("audio/speech/stream"));
	url.protocol = url.protocol.replace("http", "ws");
	const socket = new WebSocket(url, key ? ["vivace", `vivace-key.${encodeKey(key)}`] : ["vivace"]);
	socket.binaryType = "arraybuffer";
	return socket;
}

// Why the server rejected a WebSocket. Browsers do not tell, so a request over HTTP finds out.
export const whyNoSocket = () => call("audio/models").then(
	() => new ApiError("The server does not accept the connection. Try again."), (error) => error);

// A subprotocol must be an HTTP token; base64url is one.
const encodeKey = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)))
	.replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
