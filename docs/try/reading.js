// Writes numbers, dates, abbreviations, capitals and signs as spoken words: the common rules of
// `vivace.text.normalize.english`, over the same word tables. docs/browser.md lists what differs.
import { cardinal, decade, decimal, inPairs, isOne, NUMBER, ordinal, readDigits, spellDigits, year } from "./numbers.js";
import { makeToken, openTables, plainSigns, readAbbreviation, readCapitals, readLeftovers, readMixed, readWord,
	spellLetters, stopAfter } from "./words.js";

const whole = (pattern, flags = "") => new RegExp(`^(?:${pattern})$`, flags);
const PLAIN_WORD = /^(?:[A-Z]?[a-z]+(?:['-][a-z]+)*|A|I'[a-z]+|)$/;
const CURRENCIES = { __proto__: null, $: ["dollar", "dollars", "cent"], "£": ["pound", "pounds", "penny"], "€": ["euro", "euros", "cent"],
	"¥": ["yen", "yen", ""], "₹": ["rupee", "rupees", ""], "₩": ["won", "won", ""], "₿": ["bitcoin", "bitcoins", ""] };
const SUM = whole(`([-−])?(US|CA?|AU?)?([$£€¥₹₩₿])(${NUMBER}|\\.\\d+)([kKmMbBtT]|[mb]n)?(?:/([a-z]+))?(\\+)?`);
const CLOCK = whole("([01]?\\d|2[0-4]):([0-5]\\d)(?::([0-5]\\d))?([ap]\\.?m\\.?)?", "i");
const HOUR = whole("(1[0-2]|[1-9])([ap]\\.?m\\.?)", "i");
const HALF = whole("[ap]\\.?m\\.?", "i");
const QUANTITY = whole(`([-−–+~±≈<>≤≥])?(${NUMBER}|\\.\\d+)(%|‰|[²³]?[A-Za-zµμ°℃℉][A-Za-z°²³2/]{0,5}|°)?`);
const ENDS = { __proto__: null, "%": "percent", "‰": "per thousand", k: "thousand", bn: "billion", x: "times" };
const SCALES = ["hundred", "thousand", "million", "billion", "trillion"];
const RANGE = whole(`(${NUMBER})(%?)[-–—~](${NUMBER})(%|[A-Za-zµ°][A-Za-z°²³/]{0,4})?`);
const PHONE = whole("(?:\\+?1[-.])?(?:\\(?\\d{3}\\)?[-.])?\\d{3}[-.]\\d{4}|\\+\\d{1,3}(?:[-.]\\d{2,4}){2,4}|\\+\\d{10,13}");
const EMAIL = whole("([\\w.+-]+)@([\\w-]+(?:\\.[\\w-]+)+)", "i");
const URL_TEXT = whole("(?:https?|ftp)://(\\S+)|(www\\.\\S+)", "i");
const DOTTED = whole("[\\w~+-]*(?:[\\w+-]*\\.[\\w-]+)+(?:/\\S*)?");
const MIXED = whole("((?=.*\\d)(?=.*[A-Za-z])[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*)((?:['’]s)?)");
const POINTED = whole("(?:[A-Za-z]+-)?\\d+\\.\\d+(?:-?[A-Za-z]{1,3})?(?:-[A-Za-z0-9]+)*"); // Llama-3.1-8B, 802.11ac
const JOINTS = /(—|…|\.{2,}|[-–/&+=@±×÷<>≤≥≈≠→°√∞²³%^_|~#*:;,!?()[\]{}"“”$€£])/;
const INSIDE = "&+=@±×÷<>≤≥≈≠→°√∞²³%^";

export class Reader {
	// `words`: the content of words.json.
	constructor(words) {
		this.tables = openTables(words);
		const months = words.lists.months.join(" ").split(" ");
		this.months = months;
		this.monthOf = { __proto__: null, ...Object.fromEntries(months.flatMap((month) => [[month, month], [month.slice(0, 3), month]])), Sept: "September" };
	}

	// The words of one paragraph. White space becomes single spaces.
	read(text) {
		const tokens = text.trim().split(/\s+/u).filter(Boolean).map(makeToken), parts = [];
		for (let place = 0; place < tokens.length;) {
			const at = { before: tokens[place - 1], earlier: tokens[place - 2], token: (ahead) => tokens[place + ahead] };
			const reading = this.readToken(at, tokens[place]), count = reading.count ?? 1;
			const last = tokens[place + count - 1];
			parts.push(this.join(at, tokens[place], last, { ...reading, isEnd: place + count === tokens.length }));
			place += count;
		}
		return parts.filter(Boolean).join(" ").replace(/ ([,])(?=[ ,])/g, "$1");
	}

	readToken(at, token) {
		if (PLAIN_WORD.test(token.core) && !token.trail.includes(".")) {
			const rules = token.core ? [readAbbreviation, this.readDate, this.readUnit] : [this.readSign];
			return this.apply(rules, at, token);
		}
		return this.apply([this.readSign, readAbbreviation, this.readDate, this.readPhone, this.readTime, this.readMoney, this.readFraction,
			this.readDecade, this.readOrdinal, this.readQuantity, this.readRange, this.readUnit, this.readCode, this.readAddress, readCapitals,
			this.readStroke, this.readCompound], at, token);
	}

	apply(rules, at, token) {
		for (const rule of rules) {
			const reading = rule.call(this, at, token, this.tables);
			if (reading) return reading;
		}
		return { words: token.core };
	}

	// Brackets become commas, signs become ASCII.
	join(at, first, last, { words, lead = first.lead, trail = last.trail, isEnd }) {
		const plain = (text) => plainSigns(text, this.tables);
		const isAfter = lead.includes("(") && at.before && !at.before.trail && at.before.core && words;
		const rest = trail.replaceAll(")", ""), after = trail.includes(")") && !rest && !isEnd ? "," : plain(rest);
		const text = readLeftovers(plain(lead.replaceAll("(", "")) + plain(words) + after, this.tables).trim().replace(/\s{2,}/g, " ");
		return isAfter && text ? `, ${text}` : text;
	}

	readSign({ before, token: ahead }, { text }, { signs }) {
		if (text.length > 1 && !["->", "=>", "<=", ">=", "==", "!=", "+/-"].includes(text)) return null;
		if (["->", "=>"].includes(text)) return { words: "to", trail: "" };
		if (text === "+/-") return { words: "plus or minus", trail: "" };
		const sign = { "<=": "≤", ">=": "≥", "==": "=", "!=": "≠" }[text] ?? text, isAfterDigit = /\d$/.test(before?.core ?? "");
		if ("-–/".includes(sign) && isAfterDigit && /^\d/.test(ahead(1)?.core ?? "")) return { words: sign === "/" ? "divided by" : "minus", lead: "", trail: "" };
		if (!(sign in signs)) return null;
		const isLoose = "+=<>×÷*/−^~≈".includes(sign) && !/[\p{L}\p{N}]$/u.test(before?.text ?? "");
		return { words: isLoose ? "" : signs[sign], lead: "", trail: "" };
	}

	// `12/25/2024`, `2024-12-25`, `Dec. 25, 2024`, `25 December 2024`
	readDate(at, token) {
		const numeric = /^(\d{1,4})([-/.])(\d{1,2})\2(\d{1,4})$/.exec(token.core);
		if (numeric) return this.readNumericDate(numeric);
		const short = /^(\d{1,2})\/(\d{1,2})$/.exec(token.core);
		if (short) return short[1] <= 12 && short[2] > 12 && short[2] <= 31 ? { words: this.sayDay(short[1], short[2]) } : null;
		const month = this.monthOf[token.core];
		if (month) return this.readAfterMonth(at, token, month);
		const day = dayOf(token), following = at.token(1);
		if (!day || token.trail || !following || following.lead || !this.monthOf[following.core]) return null;
		if (!["", ".", ","].includes(following.trail) || (following.core === "May" && following.trail)) return null;
		const the = at.before?.core.toLowerCase() === "the" ? "" : "the ";
		return this.withYear(at, `${the}${ordinal(day)} of ${this.monthOf[following.core]}`, 2);
	}

	sayDay(month, day) { return `${this.months[month - 1]} ${ordinal(day)}`; }

	readNumericDate([, first, sign, second, third]) {
		let date = [first, second, third];
		if (first.length !== 4 || third.length > 2) {
			if (first.length > 2 || ![2, 4].includes(third.length)) return null;
			const number = third.length === 4 ? third : third < 70 ? 2000 + Number(third) : 1900 + Number(third);
			date = first > 12 || sign === "." ? [number, second, first] : [number, first, second];
		}
		const [number, month, day] = date.map(Number);
		const isDate = month >= 1 && month <= 12 && day >= 1 && day <= 31 && number >= 1000 && number <= 2999;
		return isDate ? { words: `${this.sayDay(month, day)}, ${year(number)}` } : null;
	}

	readAfterMonth(at, token, month) {
		const day = at.token(1), isShort = token.core !== month;
		if (!["", "."].includes(token.trail) || !day || day.lead) {
			return token.trail.startsWith(".") && isShort && day ? { words: month, trail: token.trail.slice(1) } : null;
		}
		if (/^[12]\d{3}$/.test(day.core)) return { words: `${month} ${year(Number(day.core))}`, count: 2 };
		const bounds = /^(\d{1,2})[-–](\d{1,2})$/.exec(day.core);
		if (bounds && bounds[2] <= 31) return this.withYear(at, `${month} ${ordinal(bounds[1])} to ${ordinal(bounds[2])}`, 2);
		if (!dayOf(day)) return isShort && token.trail === "." ? { words: month, trail: "" } : null;
		return this.withYear(at, `${month} ${ordinal(dayOf(day))}`, 2);
	}

	withYear(at, words, count) {
		const last = at.token(count - 1), following = at.token(count);
		const isYear = ["", ",", "."].includes(last.trail) && following && !following.lead && /^[12]\d{3}$/.test(following.core);
		return isYear ? { words: `${words}, ${year(Number(following.core))}`, count: count + 1 } : { words, count };
	}

	readPhone(at, { core }) {
		if (!PHONE.test(core) || core.length <= 7) return null;
		const groups = core.match(/\d+/g).map((group) => (group === "1" ? "one" : group === "800" && core.startsWith("1") ? "eight hundred" : spellDigits(group)));
		return { words: (core.startsWith("+") ? "plus " : "") + groups.join(", ") };
	}

	// `3:30 pm`, `14:05`, `9am`
	readTime(at, token, tables) {
		const { core, trail } = token, hour = HOUR.exec(core), clock = CLOCK.exec(core), following = trail ? null : at.token(1);
		if (hour) return { words: `${cardinal(hour[1])} ${letters(hour[2])}`, trail: halfTrail(at, token, 0, tables) };
		const isHalf = following && !following.lead && HALF.test(following.core);
		if (!clock && !(isHalf && /^(?:1[0-2]|[1-9])$/.test(core))) return null;
		const half = clock?.[4] ?? (isHalf ? following.core : ""), words = clock ? sayClock(clock, half) : cardinal(core);
		if (clock?.[4]) return { words: `${words} ${letters(half)}`, trail: halfTrail(at, token, 0, tables) };
		return half ? { words: `${words} ${letters(half)}`, count: 2, trail: halfTrail(at, following, 1, tables) } : { words };
	}

	readMoney(at, token, tables) {
		const found = SUM.exec(token.core);
		if (!found) {
			const sign = tables.currency_codes[wordAfter(at, token)] ?? wordAfter(at, token), isNumber = whole(NUMBER).test(token.core);
			if (isNumber && sign in CURRENCIES) return { words: sayAmount(token.core, sign), count: 2 };
			const isCode = token.core in tables.currency_codes && whole(NUMBER).test(wordAfter(at, token));
			return isCode ? { words: sayAmount(wordAfter(at, token), tables.currency_codes[token.core]), count: 2 } : null;
		}
		const [, minus, of, sign, number, letter, per, plus] = found, following = wordAfter(at, token);
		const isScaled = !letter && SCALES.includes(following), scale = isScaled ? following : tables.scale_letters[letter] ?? "";
		const words = (minus ? "minus " : "") + sayAmount(number, sign, scale, tables.currency_origins[of] ?? "")
			+ (per ? ` per ${tables.per[per] ?? per}` : "") + (plus ? " plus" : "");
		return { words, count: isScaled ? 2 : 1 };
	}

	// `1/2`, `1 1/2`, `24/7`
	readFraction(at, token, { fractions }) {
		if (token.core in fractions) return { words: fractions[token.core] };
		const own = readFraction(token.core), next = /^\d{1,3}$/.test(token.core) ? readFraction(wordAfter(at, token)) : "";
		if (next) return { words: `${decimal(token.core)} and ${next === "one half" ? "a half" : next}`, count: 2 };
		return own ? { words: own } : null;
	}

	// `1990s`, `the '90s`
	readDecade(at, { lead, core }) {
		const found = /^['’]?(\d{1,3}0)['’]?s$/.exec(core);
		return found ? { words: decade(found[1]), lead: lead.replace(/['’‘]+$/, "") } : null;
	}

	readOrdinal(at, { core }) {
		const found = /^(\d{1,3}(?:,\d{3})+|\d{1,9})(?:st|nd|rd|th)$/i.exec(core);
		return found ? { words: ordinal(found[1].replaceAll(",", "")) } : null;
	}

	// A number with the unit or scale after it: `5 kg`, `3°C`, `12.5%`.
	readQuantity(at, token, tables) {
		const found = QUANTITY.exec(token.core);
		if (!found) return null;
		const [, sign, number, end] = found, signed = (sign ? `${tables.number_signs[sign]} ` : "") + decimal(number);
		if (end) {
			const name = end === "s" ? (isOne(number) ? "second" : "seconds") : ENDS[end] ?? unitWords(end, number, tables);
			return name ? { words: `${signed} ${name}` } : null;
		}
		const following = wordAfter(at, token);
		if (following === "%") return { words: `${signed} percent`, count: 2 };
		if (SCALES.includes(following)) return { words: `${signed} ${following}`, count: 2 };
		const unit = following && unitWords(following, number, tables);
		if (unit) return { words: `${signed} ${unit}`, count: 2 };
		return { words: /^\d+$/.test(number) && !sign ? this.readInteger(at, token, number, following) : signed };
	}

	readInteger({ before }, token, digits, following) {
		const { tables } = this, earlier = before && !before.trail ? before.core.toLowerCase() : "";
		if ((tables.before_codes.has(earlier) && digits.length >= 3) || (["call", "dial"].includes(earlier) && digits.length === 3)) return spellDigits(digits);
		if ([3, 4].includes(digits.length) && tables.before_pairs.has(earlier)) return inPairs(digits);
		if (digits.length >= 7 && !digits.endsWith("000")) return spellDigits(digits);
		const number = Number(digits);
		if (digits.length !== 4 || number < 1100 || number > 2099) return readDigits(digits);
		if (/^\p{Ll}+s$/u.test(following) && !tables.after_years.has(following)) return readDigits(digits);
		const isYear = tables.before_years.has(earlier) || number >= 1900 || token.lead === "(" || tables.after_years.has(following.toLowerCase());
		return isYear ? year(number) : readDigits(digits);
	}

	// `10-20`, `1990–2000`, `3-5 kg`, `16:9`
	readRange(at, token, tables) {
		const ratio = whole(`(${NUMBER}):(${NUMBER})`).exec(token.core);
		if (ratio) return { words: `${decimal(ratio[1])} to ${decimal(ratio[2])}` };
		const found = RANGE.exec(token.core);
		if (!found) return null;
		const [, low, percent, high, unit] = found, words = `${sayBound(low, high)} to ${sayBound(high, low)}`;
		if (percent || unit === "%") return { words: `${words} percent` };
		if (unit) return unitWords(unit, high, tables) ? { words: `${words} ${unitWords(unit, high, tables)}` } : null;
		const name = unitWords(wordAfter(at, token), high, tables);
		return name ? { words: `${words} ${name}`, count: 2 } : { words };
	}

	// A unit without a number: `in km/h`, `per kg`
	readUnit({ before }, { core }, tables) {
		if (tables.spelled_units.has(core)) return { words: core.toUpperCase().split("").join(" ") };
		if (!tables.lone_units.has(core) && !core.includes("/")) return null;
		const isSingle = tables.lone_units.has(core) && before && !before.trail && ["per", "a", "one", "each", "every"].includes(before.core.toLowerCase());
		const words = unitWords(core, isSingle ? "1" : "", tables);
		return words ? { words } : null;
	}

	// `C++`, `10-year-old`, `B12`, `iPhone`
	readCode(at, { core }, tables) {
		if (core in tables.languages) return { words: tables.languages[core] };
		const hyphened = /^(\d+(?:\.\d+)?)((?:-[A-Za-z]{2,})+)$/.exec(core);
		if (hyphened) return { words: decimal(hyphened[1]) + hyphened[2] };
		const mixed = MIXED.exec(core);
		if (mixed) return { words: readMixed(mixed[1], tables) + mixed[2] };
		if (POINTED.test(core) && /[A-Za-z]/.test(core)) {
			return { words: core.match(/\d+\.\d+|[A-Za-z0-9]+/g).map((part) => (part.includes(".") ? decimal(part) : readMixed(part, tables))).join(" ") };
		}
		const camel = /^(?!Mc|Mac|De|Di|La|Le|Van|Fitz)([A-Za-z]{3,40}?)((?:['’]s)?)$/.exec(core);
		if (!camel || !/[a-z][A-Z]/.test(camel[1])) return null;
		const known = tables.brands[camel[1].toLowerCase()];
		const cases = camel[1].match(/[A-Z]{2,}(?=[A-Z][a-z]|$)|[A-Z]?[a-z]+|[A-Z]+/g);
		return { words: (known ?? cases.map((part) => (/^[A-Z]{2,}$/.test(part) ? readWord(part, false, tables) : part)).join(" ")) + camel[2] };
	}

	// E-mail addresses, URLs, domains, `@handles` and `#5`
	readAddress(at, { core }) {
		const email = EMAIL.exec(core), url = URL_TEXT.exec(core), numbered = /^#(\d{1,9})$/.exec(core), handle = /^@(\w{1,40})$/.exec(core);
		if (email) return { words: `${this.spell(email[1])} at ${this.spell(email[2])}` };
		if (url) return { words: this.spell((url[1] ?? url[2]).replace(/\/+$/, "")) };
		if (handle) return { words: `at ${this.spell(handle[1])}` };
		if (numbered) return { words: `number ${readDigits(numbered[1])}` };
		const missing = /^([a-z]{2,}|\d+)([.?!])([A-Z][a-z]+)$/.exec(core);
		if (missing) return { words: `${missing[1]}${missing[2]} ${missing[3]}` };
		if (/^[vV]?\d{1,4}(?:\.\d{1,4})+$/.test(core)) {
			return { words: (/^v/i.test(core) ? "version " : "") + core.replace(/^v/i, "").split(".").map(readDigits).join(" point ") };
		}
		return core.includes(".") && DOTTED.test(core) && !/^(?:[A-Z][a-z]?\.|[a-z]\.)+[A-Za-z]{1,2}$/.test(core) ? { words: this.spell(core) } : null;
	}

	// An address or file name: signs are named.
	spell(text) {
		const { address_signs: signs, address_words: words, spelled_names: spelled } = this.tables;
		return (text.match(/[A-Za-z]+|\d+|[^\w\s]|_/g) ?? []).map((piece) => {
			const lower = piece.toLowerCase();
			if (piece in signs) return signs[piece];
			if (/^\d/.test(piece)) return piece.length <= 2 && piece[0] !== "0" ? cardinal(piece) : /^(?:19|20)\d\d$/.test(piece) ? year(Number(piece)) : spellDigits(piece);
			if (lower in words) return words[lower];
			return spelled.has(lower) || (lower.length > 1 && !/[aeiouy]/.test(lower)) ? spellLetters(lower) : lower;
		}).join(" ");
	}

	// `his/her`, `client/server`
	readStroke(at, { core }, tables) {
		const found = /^([A-Za-z'-]+)\/([A-Za-z'-]+)$/.exec(core);
		if (!found) return null;
		const parts = [found[1], found[2]], isChoice = parts.some((part) => tables.or_words.has(part.toLowerCase()));
		return { words: parts.map((part) => (/^[A-Z]+$/.test(part) ? readWord(part, false, tables) : part)).join(isChoice ? " or " : " ") };
	}

	// Words of several parts: `mid-1990s`, `well—NO`.
	readCompound(at, { core }) {
		const parts = core.split(JOINTS).filter(Boolean);
		if (parts.length < 2 || !parts.some((part) => this.readPart(part) !== part || INSIDE.includes(part) || "/_".includes(part))) return null;
		const isPlain = (part) => /^\p{L}+$/u.test(part ?? "") && !/^[A-Z]{2,}$/.test(part);
		return { words: parts.map((part, i) => {
			if (!JOINTS.test(part) || part.length > 1) return part.startsWith("..") ? "... " : this.readPart(part);
			if ("-–".includes(part)) return isPlain(parts[i - 1]) && isPlain(parts[i + 1]) ? "-" : " ";
			if ("—…".includes(part)) return part === "—" ? " - " : "... ";
			if (",;:!?".includes(part)) return `${part} `;
			const word = part === "/" ? "slash" : INSIDE.includes(part) ? this.tables.signs[part] : "";
			return word ? ` ${word} ` : " ";
		}).join("") };
	}

	readPart(part) {
		const isDecade = /^(\d{1,3}0)s$/.exec(part);
		if (whole(NUMBER).test(part)) return /^(?:19|20)\d\d$/.test(part) ? year(Number(part)) : decimal(part);
		if (isDecade) return decade(isDecade[1]);
		if (/^[A-Z]{2,}$/.test(part)) return readWord(part, false, this.tables);
		return MIXED.test(part) ? readMixed(part, this.tables) : part;
	}
}

function dayOf({ core }) {
	const found = /^(\d{1,2})(?:st|nd|rd|th)?$/i.exec(core);
	return found && found[1] >= 1 && found[1] <= 31 ? Number(found[1]) : 0;
}

const letters = (half) => Array.from(half.replaceAll(".", "").toUpperCase()).join(" ");

// The full stop of "p.m." stays only at the end of a sentence.
function halfTrail(at, { core, trail }, place, tables) {
	if (!core.includes(".") || !trail.startsWith(".")) return trail;
	return stopAfter(at, trail, place, /^[A-Z]+$/.test(at.token(place + 1)?.core ?? ""), tables);
}

function sayClock([, hour, minutes, seconds], half) {
	const isEven = minutes === "00", tail = isEven ? "" : minutes[0] === "0" ? ` oh ${cardinal(minutes[1])}` : ` ${cardinal(minutes)}`;
	const round = isEven && !half && !seconds ? (hour > 0 && hour <= 12 ? " o'clock" : " hundred") : "";
	return cardinal(hour) + tail + round + (seconds ? ` ${seconds[0] === "0" ? spellDigits(seconds) : cardinal(seconds)}` : "");
}

function sayAmount(number, sign, scale = "", of = "") {
	const [one, several, hundredth] = CURRENCIES[sign], [wholePart, places = ""] = number.replaceAll(",", "").split(".");
	if (scale || !hundredth || ![0, 2].includes(places.length)) {
		return `${decimal(number)} ${scale ? `${scale} ` : ""}${of}${isOne(number) && !scale ? one : several}`;
	}
	const units = Number(wholePart || 0), cents = Number(places || 0), parts = [];
	if (units || !cents) parts.push(`${cardinal(wholePart || "0")} ${of}${units === 1 ? one : several}`);
	if (cents) parts.push(`${cardinal(cents)} ${cents === 1 ? hundredth : hundredth === "penny" ? "pence" : `${hundredth}s`}`);
	return parts.join(" and ");
}

function readFraction(text) {
	const found = /^([1-9]\d{0,3})\/([1-9]\d{0,3})$/.exec(text ?? ""), above = Number(found?.[1]), below = Number(found?.[2]);
	if (!found || above >= below || ![2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 32, 64, 100, 1000].includes(below)) return "";
	const part = { 2: "half", 4: "quarter" }[below] ?? ordinal(below);
	return `${cardinal(above)} ${above === 1 ? part : below === 2 ? "halves" : `${part}s`}`;
}

// One end of a range; two numbers of four digits are years.
function sayBound(text, other) {
	const isYear = /^\d{4}$/.test(text) && text >= 1100 && text <= 2099 && [2, 4].includes(other.length);
	return isYear ? year(Number(text)) : decimal(text);
}

// The name of a unit after a number; "" if it is none.
function unitWords(unit, number, tables) {
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
function wordAfter(at, token) {
	const following = token.trail ? undefined : at.token(1);
	return !following || following.lead ? "" : following.core;
}
