// Days, times, sums, fractions and units in words, after the rules of `vivace.text.normalize.english`.
import { cardinal, decimal, isOne, ordinal, spellDigits, year } from "./numbers.js";
import { stopAfter } from "./words.js";

export const CURRENCIES = { __proto__: null, $: ["dollar", "dollars", "cent"], "£": ["pound", "pounds", "penny"], "€": ["euro", "euros", "cent"],
	"¥": ["yen", "yen", ""], "₹": ["rupee", "rupees", ""], "₩": ["won", "won", ""], "₿": ["bitcoin", "bitcoins", ""] };

export function dayOf({ core }) {
	const found = /^(\d{1,2})(?:st|nd|rd|th)?$/i.exec(core);
	return found && found[1] >= 1 && found[1] <= 31 ? Number(found[1]) : 0;
}

const HALF = "[ap]\\.?m\\.?";
export const CLOCK = new RegExp(`^([01]?\\d|2[0-4]):([0-5]\\d)(?::([0-5]\\d))?(${HALF}|[ap])?$`, "i"); // also "6:42a"
export const HOUR = new RegExp(`^(1[0-2]|[1-9])(${HALF})$`, "i");
export const ONLY_HALF = new RegExp(`^${HALF}$`, "i");
export const letters = (half) => `${half[0].toUpperCase()} M`;

// The full stop of "p.m." stays only at the end of a sentence.
export function halfTrail(at, { core, trail }, place, tables) {
	if (!core.includes(".") || !trail.startsWith(".")) return trail;
	return stopAfter(at, trail, place, /^[A-Z]+$/.test(at.token(place + 1)?.core ?? ""), tables);
}

export function sayClock([, hour, minutes, seconds], half) {
	const isEven = minutes === "00", tail = isEven ? "" : minutes[0] === "0" ? ` oh ${cardinal(minutes[1])}` : ` ${cardinal(minutes)}`;
	const round = isEven && !half && !seconds ? (hour > 0 && hour <= 12 ? " o'clock" : " hundred") : "";
	return cardinal(hour) + tail + round + (seconds ? ` ${seconds[0] === "0" ? spellDigits(seconds) : cardinal(seconds)}` : "");
}

export function sayAmount(number, sign, scale = "", of = "", isMany = false) {
	const [one, several, hundredth] = CURRENCIES[sign], [wholePart, places = ""] = number.replaceAll(",", "").split(".");
	if (scale || isMany || !hundredth || ![0, 2].includes(places.length)) {
		return `${decimal(number)} ${scale ? `${scale} ` : ""}${of}${isOne(number) && !scale && !isMany ? one : several}`;
	}
	const units = Number(wholePart || 0), cents = Number(places || 0), parts = [];
	if (units || !cents) parts.push(`${cardinal(wholePart || "0")} ${of}${units === 1 ? one : several}`);
	if (cents) parts.push(`${cardinal(cents)} ${cents === 1 ? hundredth : hundredth === "penny" ? "pence" : `${hundredth}s`}`);
	return parts.join(" and ");
}

const DENOMINATORS = [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 32, 64, 100, 1000];

export function readFraction(text) {
	const found = /^([1-9]\d{0,3})\/([1-9]\d{0,3})$/.exec(text ?? ""), above = Number(found?.[1]), below = Number(found?.[2]);
	if (!found || above >= below || !DENOMINATORS.includes(below)) return "";
	const part = { 2: "half", 4: "quarter" }[below] ?? ordinal(below);
	return `${cardinal(above)} ${above === 1 ? part : below === 2 ? "halves" : `${part}s`}`;
}

// `step 1/5`, `a 60/40 split`, `the 23/24 season`, `24/38`, `8/10`
export function readPair(at, token, tables) {
	const [above, below] = /^([1-9]\d{0,3})\/([1-9]\d{0,3})$/.exec(token.core)?.slice(1).map(Number) ?? [];
	if (!below) return null;
	const following = wordAfter(at, token), before = at.before && !at.before.trail ? at.before.core.toLowerCase() : "";
	const say = (joint) => ({ words: `${cardinal(above)} ${joint}${cardinal(below)}` });
	if (above <= below && tables.before_counts.has(before)) return say("of ");
	const isSplit = above + below === 100 && ![97, 98, 99].includes(below), isSeason = above + 1 === below && above > 9 && tables.after_seasons.has(following);
	if (isSplit || isSeason || (above === 20 && following === "vision")) return say("");
	const isDate = above <= 12 && below <= 31, isNamed = tables.before_pairs.has(before) || unitWords(following, "", tables);
	const isShare = above <= below && below <= 150 && !DENOMINATORS.includes(below) && !isDate && !isNamed;
	const isMark = above > 1 && above <= below && [10, 100].includes(below) && !tables.after_parts.has(following);
	const isWhole = (above === below && [3, 4, 5, 10, 100].includes(below)) || (above <= below && tables.after_marks.has(following));
	return isShare || isMark || isWhole ? say("out of ") : null;
}

// `½` as `1/2`; "" if it is no fraction.
export const splitFraction = (sign) => (/^[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]$/.test(sign) ? sign.normalize("NFKC").replace("⁄", "/") : "");

// A time of day, alone or as one end of a span; "" if it is none.
export function sayTime(text, isFirst = false) {
	const hour = HOUR.exec(text), clock = CLOCK.exec(text);
	if (hour) return `${cardinal(hour[1])} ${letters(hour[2])}`;
	if (/^(?:1[0-2]|[1-9])$/.test(text)) return cardinal(text);
	return clock ? sayClock(clock, clock[4] || isFirst) + (clock[4] ? ` ${letters(clock[4])}` : "") : "";
}

// Digits one by one, with a comma between groups; 800 is "eight hundred".
export function sayPhone(text) {
	const groups = text.match(/[A-Z]+|\d+/g).map((group) => {
		if (/[A-Z]/.test(group)) return group.toLowerCase();
		return group === "1" ? "one" : group === "800" && text.startsWith("1") ? "eight hundred" : spellDigits(group);
	});
	return (text.startsWith("+") ? "plus " : "") + groups.join(", ");
}

// The signs after a unit, without the full stop of its abbreviation: `5 ft. tall`.
export function unitTrail(at, unit, place, tables) {
	const trail = at.token(place)?.trail, following = at.token(place + 1)?.core ?? "";
	const isInside = /^\p{Ll}/u.test(following) || (tables.dotted_units.has(unit) && /^\d/.test(following));
	return trail === "." && isInside ? "" : trail;
}

// One end of a range; two numbers of four digits are years.
export function sayBound(text, other) {
	const isYear = /^\d{4}$/.test(text) && text >= 1100 && text <= 2099 && [2, 4].includes(other.length);
	return isYear ? year(Number(text)) : decimal(text);
}

// The name of a unit after a number; "" if it is none.
export function unitWords(unit, number, tables) {
	if (!unit) return "";
	const names = Object.hasOwn(tables.units, unit) ? tables.units[unit] : undefined;
	if (names === undefined) {
		const [head, per] = unit.split("/");
		return per && Object.hasOwn(tables.units, head) && Object.hasOwn(tables.per, per) ? `${unitWords(head, number, tables)} per ${tables.per[per]}` : "";
	}
	const [singular, irregular] = names.split("|"), several = irregular || `${singular}s`;
	const tail = several.split(" ").slice(1).join(" ");
	return isOne(number) ? (tail && !singular.includes(" ") ? `${singular} ${tail}` : singular) : several;
}

// The next word; "" if a sign separates it from this one.
export function wordAfter(at, token) {
	const following = token.trail ? undefined : at.token(1);
	return !following || following.lead ? "" : following.core;
}
