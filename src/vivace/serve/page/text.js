// The text field: the sample, the examples, text files and the text before a reload.
import { $, clearErrors, put, showError, takeFiles } from "./dom.js";

const MAX_FILE_BYTES = 4_000_000, DRAFT = "vivace.text";
const text = $("text");

// A reload of the tab keeps the text.
try {
	text.value = sessionStorage.getItem(DRAFT) ?? text.value;
	addEventListener("pagehide", () => sessionStorage.setItem(DRAFT, text.value));
} catch { /* storage may be forbidden */ }

export const isSample = () => text.value === text.defaultValue;

export function showCount() {
	put("count", `${text.value.length.toLocaleString("en")} characters`);
}

// `changed` is called after the text was replaced, `speak` after an example was chosen.
export function connectText({ changed, speak }) {
	const replace = (value) => {
		text.value = value;
		text.scrollTop = 0;
		changed();
	};
	// The first visit to the field selects the sample, so that typing replaces it. A click places the
	// cursor after the focus event, so the sample is selected again.
	const select = () => { if (isSample()) text.select(); };
	text.addEventListener("focus", () => { select(); requestAnimationFrame(select); }, { once: true });
	$("examples").onclick = ({ target }) => {
		if (!target.dataset.text) return;
		replace(target.dataset.text);
		speak();
	};
	takeFiles($("text-file"), $("script"), async (file) => {
		clearErrors();
		try {
			replace(await readText(file));
		} catch (error) {
			showError("error", error.message);
		}
	});
}

// UTF-8, or the Windows encoding of Western Europe. Other files have bytes that no text has.
async function readText(file) {
	if (file.size > MAX_FILE_BYTES) throw new Error(`${file.name} is too large: at most ${MAX_FILE_BYTES / 1e6} MB.`);
	const bytes = await file.arrayBuffer();
	const read = (encoding, fatal) => new TextDecoder(encoding, { fatal }).decode(bytes);
	let found;
	try { found = read("utf-8", true); } catch { found = read("windows-1252", false); }
	if (/[\0-\b\x0e-\x1f]/.test(found)) throw new Error(`${file.name} is not a text file. Open a .txt or .md file.`);
	return found.replace(/\r\n?/g, "\n").trim();
}
