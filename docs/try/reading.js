// Writes numbers, dates, abbreviations, capitals and signs as spoken words: the common rules of
// `vivace.text.normalize.english`, over the same word tables. docs/browser.md lists what differs.
import { cardinal, decade, decimal, inPairs, isOne, NUMBER, ordinal, readDigits, spellDigits, year } from "./numbers.js";
import { CLOCK, CURRENCIES, dayOf, halfTrail, HOUR, letters, ONLY_HALF, readFraction, readPair, sayAmount, sayBound, sayClock, sayPhone, sayTime,
	splitFraction, unitTrail, unitWords, wordAfter } from "./quantities.js";
import { makeToken, openTables, plainSigns, readAbbreviation, readCapitals, readLeftovers, readMixed, readWord,
	spellLetters, stopAfter } from "./words.js";

const whole = (pattern, flags = "") => new RegExp(`^(?:${pattern})$`, flags);
const PLAIN_WORD = /^(?:[A-Z]?[a-z]+(?:['-][a-z]+)*|A|I'[a-z]+|)$/;
const SUM = whole(`([-−])?(US|CA?|AU?)?([$£€¥₹₩₿])(${NUMBER}|\\.\\d+)([kKmMbBtT]|[mbt]n)?`
	+ `(?:[-–—][$£€¥₹₩₿]?(${NUMBER}|\\.\\d+)([kKmMbBtT]|[mbt]n)?)?(?:/([a-z]+))?(\\+)?`);
const QUANTITY = whole(`([-−–+~±≈<>≤≥])?(${NUMBER}|\\.\\d+)(%|‰|[²³]?[A-Za-zµμ°℃℉][A-Za-z°²³2/]{0,5}|°)?`);
const ENDS = { __proto__: null, "%": "percent", "‰": "per thousand", k: "thousand", bn: "billion", x: "times" };
const SCALES = ["hundred", "thousand", "million", "billion", "trillion"];
const RANGE = whole(`(${NUMBER})(%?)[-–—~](${NUMBER})(%|[A-Za-zµ°][A-Za-z°²³/]{0,4})?`);
const PHONE = whole("(?:\\+?1[-.])?(?:\\(?\\d{3}\\)?[-.])?\\d{3}[-.]\\d{4}|\\+\\d{1,3}(?:[-.]\\d{2,4}){2,4}|\\+\\d{10,13}"
	+ "|1-\\d{3}-[A-Z]{5,9}|\\d{2,6}(?:-\\d{2,6}){2,4}|\\d{1,7}(?:-\\d{1,7}){3,5}");
const PHONE_PART = whole("\\+?\\d{1,4}(?:[-.]\\d{2,4}){0,3}|\\(\\d{1,5}\\)(?:[-.]?\\d{2,4}){0,3}");
const COUNT = whole(`([~≈<>])?(${NUMBER})([KMB])?(\\+)?`);
const COUNTS = { __proto__: null, K: "thousand", M: "million", B: "billion" };
const SIZE = whole(`(${NUMBER})[x×](${NUMBER})(?:[x×](${NUMBER}))?([A-Za-z]{0,3})`);
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
		const sign = { "<=": "≤", ">=": "≥", "==": "=", "!=": "≠" }[text] ?? text, isAfterDigit = /\d$|^\d*[xyznt][²³]?$/.test(before?.core ?? "");
		if ("≤≥".includes(sign) && /^\d/.test(ahead(1)?.core ?? "") && (!before || before.trail)) return { words: sign === "≤" ? "at most" : "at least", trail: "" };
		if ("-–/".includes(sign) && isAfterDigit && /^\d/.test(ahead(1)?.core ?? "")) return { words: sign === "/" ? "divided by" : "minus", lead: "", trail: "" };
		if (!(sign in signs)) return null;
		const isLoose = "+=<>×÷*/−^~≈".includes(sign) && !/[\p{L}\p{N}]$/u.test(before?.text ?? "");
		return { words: isLoose ? "" : signs[sign], lead: "", trail: "" };
	}

	// `12/25/2024`, `2024-12-25`, `Dec. 25, 2024`, `25 December 2024`
	readDate(at, token) {
		const numeric = /^(\d{1,4})([-/.])(\d{1,2})\2(\d{1,4})$/.exec(token.core), { days } = this.tables;
		const [first, last] = token.core.split(/[-–—]/);
		if (first in days && last in days) return { words: `${days[first]} to ${days[last]}` };
		if (first in days && last === undefined) return this.readDayName(at, token, days);
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

	// `Mon., Dec. 5`; a word such as "Sun" is a day only before a date.
	readDayName(at, { core, trail }, days) {
		const following = at.token(1), isBeforeDate = Boolean(following) && (following.core in this.monthOf || /^\d/.test(following.core));
		const isName = trail.startsWith(".") && !["Sat", "Sun", "Wed"].includes(core);
		if (!isName && !(isBeforeDate && ["", ".", ",", ".,"].includes(trail))) return null;
		const isEnd = (!following || (!isBeforeDate && /^\p{Lu}/u.test(following.core))) && !trail.startsWith(".,");
		return { words: days[core], trail: isEnd ? trail : trail.replace(/^\./, "") };
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
		const bounds = /^(\d{1,2})(?:st|nd|rd|th)?[-–](\d{1,2})(?:st|nd|rd|th)?$/.exec(day.core);
		if (bounds && bounds[2] <= 31) return this.withYear(at, `${month} ${ordinal(bounds[1])} to ${ordinal(bounds[2])}`, 2);
		if (!dayOf(day)) return isShort && token.trail === "." ? { words: month, trail: "" } : null;
		return this.withYear(at, `${month} ${ordinal(dayOf(day))}`, 2);
	}

	withYear(at, words, count) {
		const last = at.token(count - 1), following = at.token(count);
		const isYear = ["", ",", "."].includes(last.trail) && following && !following.lead && /^[12]\d{3}$/.test(following.core);
		return isYear ? { words: `${words}, ${year(Number(following.core))}`, count: count + 1 } : { words, count };
	}

	// `555-0123`, `+44 20 7946 0958`, `(555) 010-9999`
	readPhone(at, { core, text }) {
		if (PHONE.test(core) && core.length > 7) return { words: sayPhone(core) };
		if (!/^\+.*\d|^0\d{2,4}$/.test(core) && !/^\(.*\d/.test(text)) return null;
		const groups = [];
		let trail = "";
		for (let place = 0; place < 6 && at.token(place) && !trail; place += 1) {
			const whole = at.token(place).text, body = whole.replace(/[.,;:!?"”'’]+$/, "");
			if (!PHONE_PART.test(body)) break;
			groups.push(body);
			trail = whole.slice(body.length);
		}
		const count = groups.join("").replace(/\D/g, "").length;
		return groups.length > 1 && count >= 7 && count <= 15 ? { words: sayPhone(groups.join(" ")), count: groups.length, trail } : null;
	}

	// `3:30 pm`, `14:05`, `9am`, `9:30-11`
	readTime(at, token, tables) {
		if (/^\d.*[-–—]/.test(token.core)) return this.readTimeSpan(at, token, tables);
		const { core, trail } = token, hour = HOUR.exec(core), clock = CLOCK.exec(core), following = trail ? null : at.token(1);
		if (hour) return { words: `${cardinal(hour[1])} ${letters(hour[2])}`, trail: halfTrail(at, token, 0, tables) };
		const isHalf = following && !following.lead && ONLY_HALF.test(following.core);
		if (!clock && !(isHalf && /^(?:1[0-2]|[1-9])$/.test(core))) return null;
		const half = clock?.[4] ?? (isHalf ? following.core : ""), words = clock ? sayClock(clock, half) : cardinal(core);
		if (clock?.[4]) return { words: `${words} ${letters(half)}`, trail: halfTrail(at, token, 0, tables) };
		return half ? { words: `${words} ${letters(half)}`, count: 2, trail: halfTrail(at, following, 1, tables) } : { words };
	}

	readTimeSpan(at, token, tables) {
		const span = /^(.{1,11}?)[-–—](.{1,11})$/.exec(token.core), following = token.trail ? null : at.token(1);
		const first = span ? sayTime(span[1], true) : "", last = span ? sayTime(span[2]) : "";
		if (!first || !last || !/[:ap]/i.test(token.core)) return null;
		if (/m\.?$/i.test(span[2])) return { words: `${first} to ${last}`, trail: halfTrail(at, token, 0, tables) };
		if (!following || following.lead || !ONLY_HALF.test(following.core)) return { words: `${first} to ${last}` };
		const words = `${first} to ${last.replace(/ (?:o'clock|hundred)$/, "")} ${letters(following.core)}`;
		return { words, count: 2, trail: halfTrail(at, following, 1, tables) };
	}

	readMoney(at, token, tables) {
		const span = whole(`(${NUMBER})[-–](${NUMBER})([$£€¥₹₩₿])`).exec(token.core); // "5-10$"
		if (span) return { words: `${decimal(span[1])} to ${sayAmount(span[2], span[3], "", "", true)}` };
		const found = SUM.exec(token.core), cents = whole(`(${NUMBER}|\\.\\d+)¢`).exec(token.core);
		if (cents) return { words: `${decimal(cents[1])} cent${isOne(cents[1]) ? "" : "s"}` };
		if (!found) {
			const sign = tables.currency_codes[wordAfter(at, token)] ?? wordAfter(at, token), isNumber = whole(NUMBER).test(token.core);
			if (isNumber && sign in CURRENCIES) return { words: sayAmount(token.core, sign), count: 2 };
			const isCode = token.core in tables.currency_codes && whole(NUMBER).test(wordAfter(at, token));
			return isCode ? { words: sayAmount(wordAfter(at, token), tables.currency_codes[token.core]), count: 2 } : null;
		}
		const [, minus, of, sign, number, letter, number2, letter2, per, plus] = found, following = wordAfter(at, token);
		const isScaled = !letter && SCALES.includes(following), scale = isScaled ? following : tables.scale_letters[letter] ?? "";
		const low = number2 ? `${decimal(number)}${letter ? ` ${scale}` : ""} to ` : "", origin = tables.currency_origins[of] ?? "";
		const amount = sayAmount(number2 ?? number, sign, tables.scale_letters[letter2] ?? scale, origin, Boolean(low));
		const words = (minus ? "minus " : "") + low + amount
			+ (per ? ` per ${tables.per[per] ?? per}` : "") + (plus ? " plus" : "");
		return { words, count: isScaled ? 2 : 1 };
	}

	// `1/2`, `1 1/2`, `2½`, `24/7`
	readFraction(at, token, tables) {
		if (token.core in tables.fractions) return { words: tables.fractions[token.core] };
		const pair = readPair(at, token, tables);
		if (pair) return pair;
		const reading = this.readParts(at, token), count = reading?.count ?? 1, last = at.token(count - 1);
		if (!reading) return null;
		const following = last.trail || at.token(count)?.lead ? "" : at.token(count)?.core;
		const unit = unitWords(following, reading.isMixed ? "" : "1", tables);
		return unit ? { words: `${reading.words} ${unit}`, count: count + 1, trail: unitTrail(at, following, count, tables) } : reading;
	}

	readParts(at, token) {
		const sign = splitFraction(token.core.slice(-1)), number = token.core.slice(0, -1), half = (words) => (words === "one half" ? "a half" : words);
		if (sign && /^\d*$/.test(number)) {
			const words = readFraction(sign);
			return { words: number ? `${decimal(number)} and ${half(words)}` : words, isMixed: number !== "" };
		}
		const following = wordAfter(at, token), lone = splitFraction(following); // "1 ½"
		const own = readFraction(token.core), next = /^\d{1,3}$/.test(token.core) ? readFraction(lone || following) : "";
		if (next) return { words: `${decimal(token.core)} and ${half(next)}`, count: 2, isMixed: true };
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
		const found = QUANTITY.exec(token.core), count = this.readCount(at, token, tables);
		if (count || !found) return count;
		const [, sign, number, end] = found, signed = (sign ? `${tables.number_signs[sign]} ` : "") + decimal(number);
		if (end === "x" && /^[-+−–=*×/]$/.test(at.token(1)?.text ?? "")) return { words: `${signed} x` }; // "2x - 5"
		if (end) {
			const name = end === "s" ? (isOne(number) ? "second" : "seconds") : ENDS[end] ?? unitWords(end, number, tables);
			const per = /^x\/(.+)$/.exec(end), times = per && tables.per[per[1]] ? `times per ${tables.per[per[1]]}` : name;
			return times ? { words: `${signed} ${times}`, trail: unitTrail(at, end, 0, tables) } : null;
		}
		const following = wordAfter(at, token);
		if (following === "%") return { words: `${signed} percent`, count: 2 };
		if (SCALES.includes(following)) return { words: `${signed} ${following}`, count: 2 };
		const unit = following && unitWords(following, number, tables);
		const isInches = following === "in" && (["ft", "feet", "foot"].includes(at.before?.core) || (at.token(1).trail === "." && unitTrail(at, "in", 1, tables) === "" ));
		const name = isInches ? (isOne(number) ? "inch" : "inches") : unit;
		if (name) return { words: `${signed} ${name}`, count: 2, trail: unitTrail(at, following, 1, tables) };
		return { words: /^\d+$/.test(number) && !sign ? this.readInteger(at, token, number, following) : signed };
	}

	// `2.3M views`, `10K+ users`, `1,000+`; `5K` alone may be a race.
	readCount(at, token, tables) {
		const found = COUNT.exec(token.core), following = wordAfter(at, token);
		if (!found || (!found[3] && !found[4])) return null;
		const [, sign, number, end, plus] = found, isCounted = following === "people" || /^\p{Ll}+s$/u.test(following);
		if (end && !number.includes(".") && (!isCounted || (end === "K" && ["2", "4", "8"].includes(number)))) return null;
		return { words: [sign ? tables.number_signs[sign] : "", decimal(number), COUNTS[end], plus ? "plus" : ""].filter(Boolean).join(" ") };
	}

	// Whether a street follows a house number: `1809 Maple Ave.`
	isHouse(at, { core, trail }) {
		if (trail || !/^[1-9]\d{2,3}$/.test(core)) return false;
		for (let place = 1; place <= 4; place++) {
			const next = at.token(place);
			if (!next || next.lead || !/^[A-Z\d]/.test(next.core)) return false;
			if (place > 1 && this.tables.street_words.has(next.core)) return true;
			if (next.trail) return false;
		}
		return false;
	}

	readInteger(at, token, digits, following) {
		const { tables } = this, { before } = at, earlier = before && !before.trail ? before.core.toLowerCase() : "";
		if ((tables.before_codes.has(earlier) && digits.length >= 3) || (["call", "dial"].includes(earlier) && digits.length === 3)) return spellDigits(digits);
		if (digits.length === 5 && /^[A-Z]{2}$/.test(before?.core ?? "")) return spellDigits(digits); // a ZIP code after a state
		if (earlier === "in" && at.earlier?.core === "ending") return spellDigits(digits); // "an account ending in 4821"
		if (this.isHouse(at, token)) return inPairs(digits);
		const isFlight = /^[A-Z]{2}$/.test(before?.core ?? "") && tables.before_pairs.has(at.earlier?.core.toLowerCase()); // "Flight UA 1549"
		if ([3, 4].includes(digits.length) && (tables.before_pairs.has(earlier) || (isFlight && digits.length === 4))) return inPairs(digits);
		if (digits.length >= 7 && !digits.endsWith("000")) return spellDigits(digits);
		const number = Number(digits);
		if (digits.length !== 4 || number < 1100 || number > 2099) return readDigits(digits);
		if (/^\p{Ll}+s$/u.test(following) && !tables.after_years.has(following)) return readDigits(digits);
		const isYear = tables.before_years.has(earlier) || number >= 1900 || token.lead === "(" || tables.after_years.has(following.toLowerCase());
		return isYear ? year(number) : readDigits(digits);
	}

	// `10-20`, `1990–2000`, `3-5 kg`, `16:9`, `4x4`, `9.8/10`
	readRange(at, token, tables) {
		const size = SIZE.exec(token.core), score = /^(\d{1,3}\.\d{1,2})\/(\d{1,3})$/.exec(token.core);
		if (score) return { words: `${decimal(score[1])} out of ${decimal(score[2])}` };
		if (size && (!size[4] || unitWords(size[4], size[2], tables))) {
			return { words: `${size.slice(1, 4).filter(Boolean).map(decimal).join(" by ")} ${unitWords(size[4], size[2], tables)}`.trim() };
		}
		const edition = /^(\d{3,5}):((?:19|20)\d\d)$/.exec(token.core), ratio = whole(`(${NUMBER}):(${NUMBER})(?::(${NUMBER}))?`).exec(token.core);
		if (edition) return { words: `${decimal(edition[1])}, ${year(Number(edition[2]))}` }; // "ISO 9001:2015"
		if (ratio) return { words: ratio.slice(1).filter(Boolean).map(decimal).join(" to ") };
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

	// `10-year-old`, `5-km`, `a 13-in. pan`
	readHyphened(at, { core, trail }, tables) {
		const found = /^(\d+(?:\.\d+)?)-([A-Za-z]{2,}|y\.o|[gmVW])((?:-[A-Za-z]{2,})*)$/.exec(core), unit = found?.[2];
		if (!found) return null;
		const name = unit === "pt" ? "point" : unit === "in" ? (trail.startsWith(".") ? "inch" : "") : unitWords(unit, "1", tables);
		if (!name && (unit.length === 1 || unit.includes("."))) return null;
		return { words: `${decimal(found[1])}${name ? ` ${name}` : `-${unit}`}${found[3]}`,
			trail: name && trail.startsWith(".)") ? trail.slice(1) : name ? unitTrail(at, unit, 0, tables) : trail };
	}

	// `C++`, `B12`, `iPhone`
	readCode(at, token, tables) {
		const { core } = token;
		if (core in tables.languages) return { words: tables.languages[core] };
		if (/^\d.*-[A-Za-z]/.test(core) && this.readHyphened(at, token, tables)) return this.readHyphened(at, token, tables);
		const mixed = MIXED.exec(core), series = /^([A-Z]{1,3})(\d{1,4})[-–—]\1(\d{1,4})$/.exec(core);
		if (series) return { words: `${readMixed(series[1] + series[2], tables)} to ${readMixed(series[1] + series[3], tables)}` }; // "Q1–Q3"
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
