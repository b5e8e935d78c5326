// Registers the service worker and, where threads are useful, makes the page cross-origin isolated.
const START_LIMIT_MS = 3000;
const STORE = "vivace.try.reloaded";

// One worker makes frames; the codec may use the other cores.
export const MAX_CODEC_THREADS = Math.max(1, Math.min(4, (navigator.hardwareConcurrency || 1) - 1));

export const numCodecThreads = () => (globalThis.crossOriginIsolated ? MAX_CODEC_THREADS : 1);

// Once per tab: a host or a browser that does not isolate the page would reload it for ever.
function markReload() {
	try {
		if (sessionStorage.getItem(STORE)) return false;
		sessionStorage.setItem(STORE, "1");
		return true;
	} catch {
		return false; // storage is forbidden
	}
}

// Resolves when the page may start. It does not resolve if the page is loaded again, which happens at
// most once, before the user did anything (`isUntouched`).
export async function isolatePage(isUntouched) {
	const { serviceWorker } = navigator; // not offered over plain HTTP
	if (!serviceWorker) return;
	const wasControlled = Boolean(serviceWorker.controller);
	const isRegistered = await serviceWorker.register("sw.js").then(() => true, () => false);
	if (!isRegistered || wasControlled || globalThis.crossOriginIsolated || MAX_CODEC_THREADS === 1) return;
	const limit = new Promise((resolve) => { setTimeout(resolve, START_LIMIT_MS, null); });
	if (!await Promise.race([serviceWorker.ready, limit]) || !isUntouched() || !markReload()) return;
	location.reload();
	await new Promise(() => {});
}

// Has the service worker keep the page's files for visits without a connection.
export async function keepPage(names) {
	const found = await navigator.serviceWorker?.getRegistration().catch(() => null); // storage may be forbidden
	found?.active?.postMessage({ keep: names });
}
