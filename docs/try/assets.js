// Downloads the voice and onnxruntime once: with progress, checked, and kept in Cache Storage.
const CACHE = "vivace-try";

async function openCache() {
	try { return await caches.open(CACHE); } catch { return null; } // not offered over plain HTTP, or forbidden
}

async function digest(bytes) {
	if (!globalThis.crypto?.subtle) return null; // not offered over plain HTTP
	return Array.from(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// `list`: {files: {name: {bytes, sha256}}}. Returns the contents by name without ".gz".
// `onProgress(done, total)` counts downloaded bytes.
export async function loadAssets(base, onProgress) {
	const list = await getList(base), cache = await openCache();
	const total = Object.values(list.files).reduce((sum, { bytes }) => sum + bytes, 0), wanted = new Set(), contents = {};
	let done = 0;
	for (const [name, { sha256 }] of Object.entries(list.files)) {
		const url = new URL(`${name}?${sha256.slice(0, 16)}`, base).href;
		wanted.add(url);
		let response = await cache?.match(url);
		if (!response) {
			const bytes = await download(url, name, (count) => onProgress(done += count, total));
			const found = await digest(bytes);
			if (found && found !== sha256) throw new Error(`The file ${name} is damaged or incomplete. Reload the page and try again.`);
			response = new Response(bytes);
			try { await cache?.put(url, response.clone()); } catch { /* no space left: it is downloaded again next time */ }
		}
		contents[name.replace(/\.gz$/, "")] = await unpack(response, name);
	}
	for (const request of await cache?.keys() ?? []) if (!wanted.has(request.url)) await cache.delete(request);
	return contents;
}

async function getList(base) {
	const response = await fetch(new URL("list.json", base), { cache: "no-cache" }).catch(() => null);
	if (!response?.ok) throw new Error("The voice could not be downloaded. Check the connection and try again.");
	return response.json();
}

async function download(url, name, onBytes) {
	const response = await fetch(url, { cache: "no-store" }).catch(() => null); // kept in Cache Storage, once
	if (!response?.ok) throw new Error(`${name} could not be downloaded. Check the connection and try again.`);
	const reader = response.body.getReader(), parts = [];
	for (;;) {
		const { done, value } = await reader.read().catch(() => { throw new Error("The download was interrupted. Try again."); });
		if (done) break;
		parts.push(value);
		onBytes(value.length);
	}
	return new Blob(parts).arrayBuffer();
}

function unpack(response, name) {
	if (!name.endsWith(".gz")) return response.arrayBuffer();
	return new Response(response.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}
