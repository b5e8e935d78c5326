// The parts of Python's unicodedata that the rules use.
import { NAMES } from "./sign-names.js";

const CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co".split(" ")
	.map((name) => [name, new RegExp(`^\\p{${name}}`, "u")]);
const isDigit = (code) => code >= 0 && /\p{Nd}/u.test(String.fromCodePoint(code));

function digit(character, other = null) {
	const plain = character.normalize("NFKC");
	if (/^\d$/.test(plain)) return Number(plain);
	const code = plain.codePointAt(0);
	if (!isDigit(code)) return other;
	let value = 0; // the digits of a script follow each other
	while (value < 9 && isDigit(code - value - 1)) value += 1;
	return value;
}

const WIDE = /^[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{20000}-\u{3fffd}]/u;

export const unicodedata = {
	category: (character) => CATEGORIES.find(([, pattern]) => pattern.test(character))?.[0] ?? "Cn",
	combining: (character) => Number(/^\p{Mn}/u.test(character)),
	decimal: digit,
	digit,
	east_asian_width: (character) => (WIDE.test(character) ? "W" : "N"),
	name: (character, other = "") => NAMES[character] ?? other,
	normalize: (form, text) => text.normalize(form),
};
