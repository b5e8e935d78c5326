// Numbers as English words, as in `vivace.text.normalize.english.numbers`.
const ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
	+ "sixteen seventeen eighteen nineteen").split(" ");
const TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split(" ");
const SCALES = ["", "thousand", "million", "billion", "trillion", "quadrillion"];
const ORDINALS = { one: "first", two: "second", three: "third", five: "fifth", eight: "eighth", nine: "ninth", twelve: "twelfth" };
const MAX_DIGITS = 3 * SCALES.length;
export const NUMBER = "\\d{1,3}(?:,\\d{3})+(?:\\.\\d+)?|\\d+(?:\\.\\d+)?"; // 1,234.50

// `one hundred twenty-three`. `digits`: a string, because a number has only 15 exact digits.
export function cardinal(digits) {
	digits = String(digits).replace(/^0+(?=\d)/, "");
	if (digits.length > MAX_DIGITS) return spellDigits(digits);
	if (digits.length <= 3) return below1000(Number(digits));
	const parts = [];
	for (let scale = Math.ceil(digits.length / 3) - 1; scale >= 0; scale--) {
		const group = Number(digits.slice(Math.max(0, digits.length - 3 * scale - 3), digits.length - 3 * scale));
		if (group) parts.push(`${below1000(group)} ${SCALES[scale]}`.trim());
	}
	return parts.join(" ");
}

function below1000(number) {
	if (number < 20) return ONES[number];
	if (number < 100) return TENS[Math.floor(number / 10)] + (number % 10 ? `-${ONES[number % 10]}` : "");
	return `${ONES[Math.floor(number / 100)]} hundred${number % 100 ? ` ${below1000(number % 100)}` : ""}`;
}

// `twenty-first`
export function ordinal(number) {
	const words = cardinal(number), cut = Math.max(words.lastIndexOf(" "), words.lastIndexOf("-")) + 1;
	const head = words.slice(0, cut), last = words.slice(cut);
	return head + (last.endsWith("y") ? `${last.slice(0, -1)}ieth` : ORDINALS[last] ?? `${last}th`);
}

// `five five five`
export const spellDigits = (digits) => Array.from(digits, (digit) => ONES[digit]).join(" ");

// Years, flights, models: `nineteen eighty-four`, `three eighty`, `one oh one`.
export function inPairs(digits) {
	if (![3, 4].includes(digits.length) || digits[0] === "0") return readDigits(digits);
	const head = digits.slice(0, -2), pair = digits.slice(-2);
	if (pair === "00") return head.endsWith("0") ? cardinal(digits) : `${cardinal(head)} hundred`;
	if (pair[0] === "0") return `${cardinal(head)} oh ${ONES[pair[1]]}`;
	return `${cardinal(head)} ${cardinal(pair)}`;
}

// `nineteen oh five`, `two thousand five`, `twenty twenty-four`
export function year(number) {
	if ((number >= 2000 && number <= 2009) || number < 1010 || number > 9999 || number % 1000 === 0) return cardinal(number);
	return inPairs(String(number));
}

// A whole number; a number that begins with 0 is read digit by digit.
export function readDigits(digits) {
	return digits.length > 1 && digits[0] === "0" ? spellDigits(digits) : cardinal(digits);
}

// `1,234.50`, `.5`, `12`: digits after the point are read one by one.
export function decimal(text) {
	const [whole, places] = text.replaceAll(",", "").split(".");
	if (!places) return readDigits(whole);
	return `${whole ? `${readDigits(whole)} ` : ""}point ${spellDigits(places)}`;
}

export const isOne = (text) => text === "1" || text === "1.0";

// `1990` as `nineteen nineties`, `20` as `twenties`
export function decade(digits) {
	const words = digits.length === 4 ? year(Number(digits)) : cardinal(digits);
	if (words.endsWith("y")) return `${words.slice(0, -1)}ies`;
	return words.endsWith("x") ? `${words}es` : `${words}s`;
}
