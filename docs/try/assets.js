// Downloads the voice and onnxruntime once: with progress, checked, and kept in Cache Storage.
const CACHE = "vivace-try";

async function openCache() {
	try { return await caches.open(CACHE); } catch { return null; } // not offered over plain HTTP, or forbidden
}

async function digest(bytes) {
	if (!globalThis.crypto?.subtle) return null; // not offered over plain HTTP
	return Array.from(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// The list of files: {voices, page, files, webgpu_files}. With a GPU, another build of onnxruntime replaces
// the plain one. null: this copy of the page has no voice.
export async function getList(base) {
	const response = await fetch(new URL("list.json", base), { cache: "no-cache" }).catch(() => null);
	if (response?.status === 404) return null;
	if (!response?.ok) throw new Error("The voice could not be downloaded. Check the connection and try again.");
	return response.json();
}

// {name: {bytes, sha256}} of the files that are needed.
function neededFiles({ files, webgpu_files: withGpu = {} }, hasGpu) {
	if (!hasGpu || !Object.keys(withGpu).length) return files;
	const { "ort.wasm.gz": _, ...others } = files;
	return { ...withGpu, ...others };
}

const addressOf = (base, name, { sha256 }) => new URL(`${name}?${sha256.slice(0, 16)}`, base).href;

// Bytes that the next `loadAssets` downloads.
export async function missingBytes(base, list, hasGpu) {
	const cache = await openCache();
	let sum = 0;
	for (const [name, entry] of Object.entries(neededFiles(list, hasGpu))) {
		if (!await cache?.match(addressOf(base, name, entry)).catch(() => null)) sum += entry.bytes;
	}
	return sum;
}

// Returns the contents by name without ".gz". `onProgress(done, total)` counts downloaded bytes.
export async function loadAssets(base, list, hasGpu, onProgress) {
	const cache = await openCache(), needed = Object.entries(neededFiles(list, hasGpu)), contents = {};
	for (const [name, entry] of needed) contents[name] = await readStored(cache, addressOf(base, name, entry));
	const missing = needed.filter(([name]) => !contents[name]), total = missing.reduce((sum, [, { bytes }]) => sum + bytes, 0);
	let done = 0;
	for (const [name, entry] of missing) {
		const url = addressOf(base, name, entry);
		const packed = await download(url, name, (count) => onProgress(done += count, total)), found = await digest(packed);
		if (found && found !== entry.sha256) throw new Error(`The file ${name} is damaged or incomplete. Reload the page and try again.`);
		contents[name] = await unpack(packed);
		try { await cache?.put(url, new Response(packed)); } catch { /* no space left: it is downloaded again next time */ }
	}
	await removeOld(cache, base, list);
	return Object.fromEntries(needed.map(([name]) => [name.replace(/\.gz$/, ""), contents[name]]));
}

// The stored file. null: there is none, or it is damaged and was removed.
async function readStored(cache, url) {
	const response = await cache?.match(url).catch(() => null);
	if (!response) return null;
	try {
		return await unpack(await response.arrayBuffer());
	} catch {
		await cache.delete(url);
		return null;
	}
}

async function removeOld(cache, base, { files, webgpu_files: withGpu = {} }) {
	const wanted = new Set(Object.entries({ ...files, ...withGpu }).map(([name, entry]) => addressOf(base, name, entry)));
	for (const request of await cache?.keys() ?? []) if (!wanted.has(request.url)) await cache.delete(request);
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

function unpack(packed) {
	return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}
