// Tokens, abbreviations, capitals and signs, after the rules of `vivace.text.normalize.english`.
import { cardinal, inPairs, ordinal, readDigits, spellDigits } from "./numbers.js";

const AROUND = /^([([{<"“”'‘’„‚«‹*_`~|¿¡]*)(.*?)([.,;:!?…)\]}>"“”'‘’»›*_`~|]*)$/su;
const INITIALS = /^((?:[A-Z][a-z]?\.|[a-z]\.)+)([A-Za-z]{1,2})((?:['’]s)?)$/;
const CAPITALS = /^([A-Z][A-Z'’&-]*[A-Z])((?:['’]?s)?)$/;
const CONTRACTION = /^([A-Z]+)(N?['’](?:T|S|RE|LL|VE|D|M))$/;
const ODD_START = /^(?:[^AEIOUY]{4}|[BCDFGJKMNPTVXZ][BCDFGJKMNPTVXZ]|[LRNM][BCDFGJKLPTSVXZ]|H[^AEIOUY]|S[BGRXZ])/;
const FINE_START = /^(?:PS|KN|GN|PN|PT|CZ|TS|MN)[AEIOUY]/;
const FINE_END = new RegExp("^(?:[AEIOUY]|[AEIOUY](?:[^AEIOUYQ]|[LNR][DKLMNPSTGVZ]?[DKST]?|[SCFPXBLMNRTDGW]?[STHKZ]|NG|NGS"
	+ "|MP|GHT?|[TNR]CH|RTH|NTH|RST|[CFP]TS|SKS|LF|RF|WN|WL|CKS?|FF|GG|TT|SS|SM|LM|MB|SP|LVES?|GN|PSE|THS?))$");
const ROMAN_ONES = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"];
const ROMAN = new Map(Array.from({ length: 39 }, (_, i) => ["X".repeat(Math.floor((i + 1) / 10)) + ROMAN_ONES[(i + 1) % 10], i + 1]));
const PLAIN = { ...sameValue("“”„«»‹›″", '"'), ...sameValue("‘’‚′`´", "'"), ...sameValue("–‐‑‒", "-"),
	...sameValue("®™†‡¶•·*_|{}[]<>~^\\¬¤", ""), "…": "...", "—": " - ", "―": " - " };

function sameValue(keys, value) { return Object.fromEntries(Array.from(keys, (key) => [key, value])); }

export const isUpper = (text) => /^\p{Lu}/u.test(text);
export const isCapitalised = (token) => Boolean(token) && /^\p{Lu}\p{Ll}/u.test(token.core);
export const spellLetters = (letters) => Array.from(letters.toUpperCase()).join(" ");

export function makeToken(text) {
	const isBound = /^[~<>]\d/.test(text); // "about", "less than", "more than"
	const [, lead, core, trail] = AROUND.exec(isBound ? text.slice(1) : text);
	return isBound ? { text, lead: "", core: text[0] + core, trail } : { text, lead, core, trail };
}

// The word tables of words.json: lists as sets, maps as objects without a prototype.
export function openTables({ lists, maps }) {
	const sets = Object.fromEntries(Object.entries(lists).map(([name, rows]) => [name, new Set(rows.join(" ").split(" "))]));
	const tables = Object.fromEntries(Object.entries(maps).map(([name, map]) => [name, Object.assign(Object.create(null), map)]));
	return { ...sets, ...tables };
}

export const begins = (at) => !at.before || /[.!?…]/.test(at.before.trail);

// Rules return the words for `count` tokens, or null. `lead` and `trail` replace the signs around them.
export function readAbbreviation(at, token, tables) {
	const { core, trail } = token, lower = core.toLowerCase();
	if (core in tables.plain_abbreviations) return { words: tables.plain_abbreviations[core] };
	const glued = /^([A-Za-z]{1,4})\.(\d{1,4})(?:[-–](\d{1,4}))?$/.exec(core); // "No.1", "pp.5-7"
	if (glued && glued[1].toLowerCase() in tables.numbered) {
		const words = tables.numbered[glued[1].toLowerCase()];
		return { words: `${at.before ? words : capitalise(words)} ${glued.slice(2).filter(Boolean).map(readDigits).join(" to ")}` };
	}
	if (!trail.startsWith(".")) return readDotless(at, token, tables);
	const initials = INITIALS.exec(core);
	if (initials && !(lower in tables.abbreviations)) return { words: spellInitials(initials), trail: stopAfter(at, trail, 0, true, tables) };
	if (core in tables.titles || core in tables.places) return readNamePart(at, token, tables);
	if (lower in tables.numbered) {
		const words = tables.numbered[lower], bracketed = /^\((\d+)\)(?:[-–]\((\d+)\))?([.,;:!?]*)$/.exec(at.token(1)?.text ?? ""); // "Eqs. (5)–(7)"
		if (bracketed) {
			const numbers = bracketed.slice(1, 3).filter(Boolean).map(readDigits).join(" to ");
			return { words: `${begins(at) ? capitalise(words) : words} ${numbers}`, count: 2, trail: bracketed[3] };
		}
		return /^(?:[\d#]|\(\d)/.test(at.token(1)?.text ?? "") ? { words: begins(at) ? capitalise(words) : words, trail: trail.slice(1) } : null;
	}
	if (lower === "est") return readEst(at, token, tables);
	if (lower in tables.abbreviations) {
		const words = isUpper(core) ? capitalise(tables.abbreviations[lower]) : tables.abbreviations[lower];
		return tables.never_last.has(lower) ? { words, trail: trail.slice(1) } : withStop(at, words, token, tables);
	}
	return /^[A-HJ-Z]$/.test(core) ? readInitial(at, token, tables) : null;
}

const capitalise = (words) => words[0].toUpperCase() + words.slice(1);
const spellInitials = (found) => spellLetters(found[1].replaceAll(".", "") + found[2]) + found[3];
const withStop = (at, words, token, tables) => ({ words, trail: stopAfter(at, token.trail, 0, tables.in_names.has(token.core), tables) });

// `Est. 1998`, `est. 5 hours`; `EST.` alone is a time zone.
function readEst(at, { core, trail }, tables) {
	const following = at.token(1), fit = (words) => (isUpper(core) ? capitalise(words) : words);
	if (/^[1-9]\d{2,3}(?:$|[-–])/.test(following?.core ?? "")) return { words: fit("established"), trail: trail.slice(1) };
	if (core === "EST") return null;
	return { words: fit(!following || following.core === "of" ? "estimate" : "estimated"), trail: stopAfter(at, trail, 0, false, tables) };
}

function readDotless(at, { core, trail }, tables) {
	if (core in tables.without_stop) return { words: tables.without_stop[core] };
	const initials = INITIALS.exec(core);
	if (initials) return { words: spellInitials(initials) };
	return ["Dr", "Prof"].includes(core) && !trail && isCapitalised(at.token(1)) ? { words: tables.titles[core] } : null;
}

// `Dr. Smith` or `Elm Dr.`, `St. Paul` or `Main St.`
function readNamePart(at, token, tables) {
	const { before } = at, following = at.token(1), { core, trail } = token;
	const isAfter = before && !before.trail && (isCapitalised(before) || /^\d/.test(before.core));
	const isFirst = before && (!at.earlier || at.earlier.trail) && !/^\d/.test(at.earlier?.core ?? "");
	const leads = isFirst && (/^[A-HJ-Z]$/.test(following?.core ?? "") || isCapitalised(following));
	if (core in tables.places && isAfter && !(["St", "Dr"].includes(core) && leads)) return withStop(at, tables.places[core], token, tables);
	if (core in tables.titles && following && trail === ".") return { words: tables.titles[core], trail: "" };
	return core in tables.places ? withStop(at, tables.places[core], token, tables) : null;
}

// `J. R. Tolkien`, `John F. Kennedy`: the full stop is removed.
function readInitial(at, { core, trail }, tables) {
	const { before } = at, following = at.token(1);
	if (!following || trail !== ".") return null;
	const isLast = before && /^\p{Lu}$/u.test(before.core);
	const isTitle = before && (["Mr", "Mrs", "Ms"].includes(before.core) || before.core in tables.titles) && ["", "."].includes(before.trail);
	const isMiddle = isTitle || (before && !before.trail && isCapitalised(before) && !tables.not_before_initials.has(before.core.toLowerCase()));
	const isInitial = (/^\p{Lu}$/u.test(following.core) && following.trail.startsWith("."))
		|| (isCapitalised(following) && (isLast || isMiddle || !before));
	return isInitial ? { words: core, trail: "" } : null;
}

// The signs after an abbreviation; the full stop stays only at the end of a sentence.
export function stopAfter(at, trail, place, isName, tables) {
	if (trail.slice(1).replace(/^["'”’)]+|["'”’)]+$/g, "")) return trail.slice(1);
	const following = at.token(place + 1);
	if (!following) return trail;
	const isEnd = isName ? tables.sentence_starters.has(following.core) : isUpper(following.core);
	return isEnd || /^["“‘]/.test(following.lead) ? trail : trail.slice(1);
}

// Words in capitals: spelled (`FBI`), read as a word (`NASA`), or emphasized (`STOP`).
export function readCapitals(at, token, tables) {
	const numeral = readNumeral(at, token, tables);
	if (numeral) return { words: numeral };
	const found = CAPITALS.exec(token.core);
	if (!found) return null;
	const [, word, ending] = found;
	if (word.includes("&")) return { words: word.split("&").filter(Boolean).map(spellLetters).join(" and ") + ending };
	const contraction = CONTRACTION.exec(word);
	if (contraction) {
		const words = (contraction[2].endsWith("T") ? contraction[1].toLowerCase() : readWord(contraction[1], false, tables)) + contraction[2].toLowerCase();
		return { words: begins(at) && !words.includes(" ") ? capitalise(words.toLowerCase()) : words };
	}
	if (word.includes("-")) return { words: word.replace(/[A-Z]{2,}/g, (part) => readWord(part, true, tables)) + ending };
	let words = readWord(word, isLoud(at, token, tables), tables);
	if (words === word.toLowerCase() && begins(at)) words = capitalise(words);
	return { words: ending === "s" && words.includes(" ") ? `${words}'s` : words + ending };
}

// A word in capitals in lower case or as letters. `loud`: neighbouring words are in capitals too.
export function readWord(word, loud, tables) {
	if (word.length === 1) return loud && word !== "I" ? word.toLowerCase() : word;
	if (tables.short_words.has(word) && (loud || !tables.ambiguous_words.has(word))) return word.toLowerCase();
	if (word in tables.said) return tables.said[word];
	if (tables.spoken_acronyms.has(word)) return word[0] + word.slice(1).toLowerCase();
	const isWord = (loud || word.length > 3) && !tables.spelled_acronyms.has(word) && isPronounceable(word);
	return isWord ? word.toLowerCase() : spellLetters(word);
}

function isPronounceable(word) {
	if (!/[AEIOUY]/.test(word)) return false;
	if (word.length > 5) return true;
	if (ODD_START.test(word) && !FINE_START.test(word)) return false;
	return FINE_END.test(word.slice(Math.max(...Array.from("AEIOUY", (vowel) => word.lastIndexOf(vowel)))));
}

function isLoud(at, token, tables) {
	if (at.before && isEmphasized(at.before.core, tables)) return true;
	const following = /[.!?]/.test(token.trail) ? null : at.token(1);
	return Boolean(following) && isEmphasized(following.core, tables);
}

function isEmphasized(word, tables) {
	const isAcronym = tables.spelled_acronyms.has(word) || tables.spoken_acronyms.has(word);
	if (!/^\p{Lu}{2,}$/u.test(word) || isAcronym) return tables.ambiguous_words.has(word);
	return tables.short_words.has(word) || (word.length > 3 && isPronounceable(word));
}

// `Henry VIII`, `World War II`; `I` only after a word such as `War`.
function readNumeral({ before }, { core }, tables) {
	const value = ROMAN.get(core);
	if (!value || !before || before.trail || ["X", "V"].includes(core)) return null;
	if (tables.before_numerals.has(before.core.toLowerCase()) && isUpper(before.core)) return cardinal(value);
	if (core === "I" || !/^\p{Lu}\p{Ll}+$/u.test(before.core)) return null;
	return tables.rulers.has(before.core) ? `the ${ordinal(value)}` : cardinal(value);
}

// Runs of letters and runs of digits one after the other: `B12`, `COVID-19`.
export function readMixed(text, tables) {
	const parts = text.match(/[A-Za-z]+|\d+/g) ?? [];
	return parts.map((part) => (/\d/.test(part) ? readCode(part) : readLetters(part, parts.length, tables))).join(" ");
}

function readCode(digits) {
	const isPaired = (digits.length === 3 && !digits.endsWith("00")) || (digits.length === 4 && !digits.endsWith("000"));
	if (isPaired && digits[0] !== "0") return inPairs(digits);
	return digits.length > 4 ? spellDigits(digits) : readDigits(digits);
}

function readLetters(part, numParts, tables) {
	if (part.length === 1) return numParts > 1 ? part.toUpperCase() : part;
	if (part === part.toUpperCase()) return part.length === 2 ? spellLetters(part) : readWord(part, false, tables);
	const known = tables.brands[part.toLowerCase()];
	return known ?? (/[aeiouy]/i.test(part) && part.length > 2 ? part : spellLetters(part));
}

// Accented letters and signs as ASCII.
export function plainSigns(text, tables) {
	if (/^[\x00-\x7f]*$/.test(text) && !/[*_|{}[\]<>~^\\`]/.test(text)) return text;
	return Array.from(text.replace(/[\u00ad\u200b-\u200f\u2060-\u2064\ufeff\ufe00-\ufe0f]/g, ""), (character) => {
		const plain = PLAIN[character] ?? tables.letters[character] ?? character;
		if (/^[\x00-\x7f]*$/.test(plain)) return plain;
		if (plain in tables.signs) return ` ${tables.signs[plain]} `;
		const folded = plain.normalize("NFKD").replace(/\p{M}/gu, "");
		return folded && /^[\x00-\x7f]*$/.test(folded) ? folded : plain;
	}).join("");
}

// Digits and signs that no rule has read; repeated signs are dropped.
export function readLeftovers(text, tables) {
	const left = /[^\p{L}\p{M}\p{N}_\s.,;:!?'"-]|[\d_]/gu;
	if (!left.test(text)) return text;
	text = text.normalize("NFKC").replace(/([^\p{L}\p{M}\p{N}_\s.,;:!?'"-])\1+/gu, " ");
	text = text.replace(/\d+/g, (digits) => ` ${readDigits(digits)} `);
	text = text.replace(left, (sign) => ` ${"&+=%@±×÷≤≥≈≠→°©§√∞$€£¥#".includes(sign) ? tables.signs[sign] : ""} `);
	return text.replace(/ +( |[.,;:!?](?!\p{L}))/gu, "$1").trim();
}
