// Service worker of the page. It adds the headers that allow WebAssembly threads, which a static host
// may not send, and keeps the page's own files for visits without a connection. `assets.js` keeps the voice.
const CACHE = "vivace-try-page";
const HEADERS = {
	"Cross-Origin-Opener-Policy": "same-origin",
	"Cross-Origin-Embedder-Policy": "require-corp",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Document-Isolation-Policy": "isolate-and-require-corp", // for an iframe in a page without these headers
};

const openCache = () => caches.open(CACHE).catch(() => null); // storage may be forbidden

function isolated(response) {
	if (!response.status || response.type === "opaqueredirect") return response; // cannot be copied
	const headers = new Headers(response.headers);
	for (const [name, value] of Object.entries(HEADERS)) headers.set(name, value);
	return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}

// The stored file. A page address without a stored answer gets the start page.
async function stored(request) {
	const cache = await openCache(), options = { ignoreSearch: true };
	return await cache?.match(request, options) ?? (request.mode === "navigate" ? cache?.match(registration.scope) : undefined);
}

// From the network if there is one, so that a new version of the page is used at once.
async function answer(event) {
	const { request } = event, response = await fetch(request).catch(() => null);
	if (!response || response.status >= 500) return isolated(await stored(request) ?? response ?? Response.error());
	if (response.ok) {
		const copy = response.clone();
		event.waitUntil(openCache().then((cache) => cache?.put(request, copy)).catch(() => {})); // no space left
	}
	return isolated(response);
}

// Stores the files of the page that were not stored yet, and removes files of earlier versions.
async function keep(names) {
	const cache = await openCache(), wanted = new Set(names.map((name) => new URL(name, registration.scope).href));
	if (!cache) return;
	for (const { url } of await cache.keys()) if (!wanted.delete(url.split("?")[0])) await cache.delete(url);
	await Promise.all(Array.from(wanted, (url) => cache.add(url).catch(() => {})));
}

oninstall = () => skipWaiting();
onactivate = (event) => event.waitUntil(clients.claim());
onfetch = (event) => {
	const { method, url } = event.request, { origin, pathname } = new URL(url);
	if (method === "GET" && origin === location.origin && !pathname.endsWith(".gz")) event.respondWith(answer(event));
};
onmessage = (event) => {
	if (event.data.keep) event.waitUntil(keep(event.data.keep).then(() => event.source?.postMessage({ isKept: true })));
};
