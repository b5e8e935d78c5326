// The settings, stored in the form and in the URL fragment, which browsers never send.
import { $ } from "./dom.js";

const FIELDS = ["model", "language", "instruct", "seed", "speed"];
const DEFAULTS = { language: "auto", speed: "1" };
const MIX = /^(.+)\((\d+)\)\+(.+)\((\d+)\)$/;

export const readAddress = () => Object.fromEntries(
	[location.search, location.hash].flatMap((part) => [...new URLSearchParams(part.slice(1))]));

export function fill(values) {
	for (const name of FIELDS) {
		const field = $(name), was = field.value;
		field.value = values[name] ?? DEFAULTS[name] ?? "";
		if (field.selectedIndex === -1) field.value = was; // the select has no such option
	}
	if (values.text !== undefined) $("text").value = values.text;
	chooseVoice(values.voice);
}

// The chosen voice, or a mix of two in the server's notation: a(70)+b(30).
export function voice() {
	const own = document.querySelector("#voices input:checked")?.value;
	const other = $("mix-with").value, share = $("mix-share").value;
	return other && other !== own ? `${own}(${100 - share})+${other}(${share})` : own;
}

// Chooses a voice or a mix by name. Unknown names have no effect.
export function chooseVoice(name) {
	const [, own, , other, share] = MIX.exec(name) ?? [null, name];
	const radio = [...document.querySelectorAll("#voices input")].find(({ value }) => value === own);
	if (!radio) return;
	radio.checked = true;
	$("mix-with").value = other ?? "";
	if ($("mix-with").selectedIndex < 1) $("mix-with").selectedIndex = 0;
	else $("mix-share").value = share;
}

export function values() {
	const all = { voice: voice(), live: $("live").checked ? "1" : "" };
	for (const name of FIELDS) all[name] = $(name).disabled ? "" : $(name).value.trim();
	if ($("model").length < 2) delete all.model;
	return Object.fromEntries(Object.entries(all).filter(([name, value]) => value && value !== DEFAULTS[name]));
}

export function address(text) {
	const query = String(new URLSearchParams({ ...values(), ...(text && { text }) }));
	return location.pathname + (query && `#${query}`);
}

// The fields of a speech request except its text. Empty fields are left to the server.
export function request() {
	const { voice, language, instruct, seed, speed } = values();
	return { model: $("model").value, voice, language, instructions: instruct, seed: seed && Number(seed), speed: speed && Number(speed) };
}
