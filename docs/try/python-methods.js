// The methods of Python's str, list, dict and set, each with its object as the first argument.
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const SPACES = new RegExp(`[${SPACE}]+`, "u");
const every = (pattern) => {
	const whole = new RegExp(`^(?:${pattern})+$`, "u");
	return (text) => whole.test(text);
};
const hasCase = (own, other) => {
	const [is, not] = [new RegExp(own, "u"), new RegExp(other, "u")];
	return (text) => is.test(text) && !not.test(text);
};
const DIGITS = "\\p{Nd}²³¹⁰⁴-⁹₀-₉①-⑨⑴-⑼⒈-⒐";

function trim(text, characters, atStart, atEnd) {
	const isCut = (unit) => (characters === null ? SPACES.test(unit) : characters.includes(unit));
	let start = 0, end = text.length;
	while (atStart && start < end && isCut(text[start])) start += 1;
	while (atEnd && end > start && isCut(text[end - 1])) end -= 1;
	return text.slice(start, end);
}

function cut(text, separator, at) {
	return at < 0 ? null : [text.slice(0, at), separator, text.slice(at + separator.length)];
}

const begins = (text, start) => [start].flat().some((one) => text.startsWith(one));
const ends = (text, end) => [end].flat().some((one) => text.endsWith(one));

export const STR = {
	lower: (text) => text.toLowerCase(),
	upper: (text) => text.toUpperCase(),
	casefold: (text) => text.toLowerCase().replaceAll("ß", "ss"),
	capitalize: (text) => text.slice(0, 1).toUpperCase() + text.slice(1).toLowerCase(),
	swapcase: (text) => text.replace(/\p{L}/gu, (one) => (one === one.toLowerCase() ? one.toUpperCase() : one.toLowerCase())),
	isalpha: every("\\p{L}"),
	isdecimal: every("\\p{Nd}"),
	isdigit: every(`[${DIGITS}]`),
	isnumeric: every("\\p{N}"),
	isalnum: every("[\\p{L}\\p{N}]"),
	isspace: every(`[${SPACE}]`),
	isascii: (text) => !/[^\0-\x7f]/.test(text),
	isupper: hasCase("\\p{Uppercase}", "[\\p{Lowercase}\\p{Lt}]"),
	islower: hasCase("\\p{Lowercase}", "[\\p{Uppercase}\\p{Lt}]"),
	startswith: (text, start, at = 0) => begins(text.slice(at), start),
	endswith: (text, end) => ends(text, end),
	strip: (text, characters = null) => trim(text, characters, true, true),
	lstrip: (text, characters = null) => trim(text, characters, true, false),
	rstrip: (text, characters = null) => trim(text, characters, false, true),
	removeprefix: (text, start) => (text.startsWith(start) ? text.slice(start.length) : text),
	removesuffix: (text, end) => (end && text.endsWith(end) ? text.slice(0, -end.length) : text),
	partition: (text, separator) => cut(text, separator, text.indexOf(separator)) ?? [text, "", ""],
	rpartition: (text, separator) => cut(text, separator, text.lastIndexOf(separator)) ?? ["", "", text],
	find: (text, part, start = 0) => text.indexOf(part, start),
	rfind: (text, part) => text.lastIndexOf(part),
	index: (text, part) => text.indexOf(part),
	count: (text, part, start = 0, end = text.length) => text.slice(start, end).split(part).length - 1,
	join: (separator, parts) => [...parts].join(separator),

	split(text, separator = null, limit = -1) {
		if (separator === null) return text.split(SPACES).filter(Boolean);
		const parts = text.split(separator);
		return limit < 0 || parts.length <= limit ? parts : [...parts.slice(0, limit), parts.slice(limit).join(separator)];
	},

	replace(text, old, now, limit = Infinity) {
		if (limit === Infinity) return text.replaceAll(old, () => now);
		const parts = STR.split(text, old, limit);
		return parts.join(now);
	},

	translate(text, table) {
		return [...text].map((character) => {
			const found = table.get(character.codePointAt(0));
			return found === undefined ? character : typeof found === "number" ? String.fromCodePoint(found) : found ?? "";
		}).join("");
	},
};

export const LIST = {
	append: (list, value) => { list.push(value); },
	appendleft: (list, value) => { list.unshift(value); },
	clear: (list) => { list.length = 0; },
	count: (list, value) => list.filter((one) => one === value).length,
	extend: (list, values) => { list.push(...values); },
	index: (list, value) => list.indexOf(value),
	insert: (list, at, value) => { list.splice(at, 0, value); },
	pop: (list, at = -1) => list.splice(at, 1)[0],
	popleft: (list) => list.shift(),
};

export const DICT = {
	get: (dict, key, other = null) => (dict.has(key) ? dict.get(key) : other),
	items: (dict) => [...dict],
	keys: (dict) => new Set(dict.keys()),
	values: (dict) => [...dict.values()],
};

export const SET = {
	add: (set, value) => { set.add(value); },
	isdisjoint: (set, values) => ![...values].some((value) => set.has(value)),
	issuperset: (set, values) => [...values].every((value) => set.has(value)),
	update: (set, values) => { for (const value of values) set.add(value); },
};
