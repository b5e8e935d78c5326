// Turns a text into utterances and pauses: paragraphs, list items, sentences, plain punctuation.
// The limits and pauses come from `reading` of the exported voice's manifest.
import { Reader } from "./reading.js";

const MIN_WRAPPED_CHARS = 40; // shorter lines were not wrapped at a right margin
const INSIDE_SEAM_S = 0.15; // silence between two utterances of one sentence
const LIST_MARK = /^(?:[-*•·▪◦‣●○■–—>|]|#{1,6})\s+|^(?=\(?(?:\d{1,3}|[A-Za-z])[.)]\s)/u;
const RULE = /^\s*(?:([-*_=~+#.·•–—])\s*)(?:\1\s*)+$/u;
const SENTENCE_END = /[.!?…]+["'”’“‘)\]}»]*(?=\s)/gu;
const CLAUSE_ENDS = [/[;:]["'”’)\]]?(?=\s)|—|\s[–-](?=\s)/gu, /,["'”’)\]]?(?=\s)/gu, /\s/gu];
const CLOSERS = /["'”’»)\]}]+$/u;
const STOPS = /([.!?…]+)(["'”’)\]}»]*)(\s*)(?=["'“‘([{«]*(.?))/gsu;

export class ScriptWriter {
	// `words`: words.json; `abbreviations`: abbreviations.json; `reading`: of the manifest.
	constructor(words, { abbreviations, before_numbers: beforeNumbers }, reading) {
		const set = (table) => new Set(Object.values(table).join(" ").split(" ")); // all languages, because a text may mix them
		Object.assign(this, { reader: new Reader(words), reading, abbreviations: set(abbreviations), beforeNumbers: set(beforeNumbers) });
		const titles = abbreviations.english.replaceAll(".", "\\.").split(" ").map((title) => title.replace(/\p{L}/gu, (letter) => `[${letter}${letter.toUpperCase()}]`)).join("|");
		this.insideStop = new RegExp(`(?<![\\p{L}\\p{N}_'’])(?:[A-HJ-Z]|${titles})$`, "u");
	}

	// Utterances and pauses in order: {text} or {pause}. Throws if nothing can be spoken.
	write(text) {
		const blocks = readBlocks(text).map((block) => ({ ...block, text: this.addCommas(this.nameLetters(this.reader.read(block.text))) })), parts = [];
		let isFirst = blocks.reduce((sum, block) => sum + block.text.length, 0) > this.reading.max_utterance_chars;
		for (const block of blocks) {
			for (const { text: sentence, isInside } of this.pack(block.text, isFirst)) {
				const plain = makePlain(sentence, isInside);
				if (!/[\p{L}\p{N}]/u.test(plain)) continue;
				checkLetters(plain);
				parts.push({ text: plain }, { pause: isInside ? INSIDE_SEAM_S : this.reading.seam_s });
				isFirst = false;
			}
			if (parts.length && block.isParagraph) parts.at(-1).pause = this.reading.paragraph_s;
		}
		parts.pop(); // no pause after the last utterance
		if (!parts.length) throw new Error("The text has no words in it; there is nothing to say.");
		return parts;
	}

	// Letters in spelled words that the voice misreads: the "A" of "A I".
	nameLetters(text) {
		for (const [letter, name] of Object.entries(this.reading.letter_names ?? {})) {
			const end = "(?:['’]s)?(?![\\p{L}\\p{N}'’])";
			const spelled = new RegExp(`(?<![\\p{L}\\p{N}'’.-])${letter}(?= [A-Z]${end})|(?<=(?:^|[^\\p{L}\\p{N}'’.-])[A-Z] )${letter}(?=${end})`, "gu");
			text = text.replace(spelled, (_, at) => (/(?:^|[.!?])\s*$/.test(text.slice(0, at)) ? name[0].toUpperCase() + name.slice(1) : name));
		}
		return text;
	}

	// Commas between very short sentences: the voice loses words without them.
	addCommas(text) {
		const sentences = [];
		let start = 0;
		for (const { index, 0: end, 1: stops, 2: closers, 3: gap, 4: next } of text.matchAll(STOPS)) {
			if ((!gap && next) || (stops === "." && this.insideStop.test(text.slice(start, index)))) continue;
			const mayContinue = !stops.includes("?") && /^ *$/.test(gap) && /[\p{L}\p{N}]/u.test(next);
			sentences.push({ own: text.slice(start, index + stops.length + closers.length), gap, mayContinue });
			start = index + end.length;
		}
		sentences.push({ own: text.slice(start), gap: "" });
		const isShort = ({ own }) => /[\p{L}\p{N}]/u.test(own) && own.trimEnd().length < (this.reading.min_utterance_chars ?? 0);
		return sentences.map((one, i) => {
			const isJoined = one.mayContinue && isShort(one) && isShort(sentences[i + 1]);
			return (isJoined ? one.own.replace(/[.!?…]+(?=["'”’)\]}»]*$)/u, ",") : one.own) + one.gap;
		}).join("");
	}

	// As many sentences in an utterance as fit; the first utterance of a long text is one sentence.
	pack(text, isFirst) {
		const { max_utterance_chars: max, min_utterance_chars: min = 0 } = this.reading, utterances = [];
		let held = null;
		for (const sentence of this.split(text, max)) {
			const isAlone = held && ((isFirst && !utterances.length) || held.text.length < min);
			const isLong = held && held.text.length + 1 + sentence.text.length > max;
			if (held && (isAlone || isLong)) {
				utterances.push(held);
				held = null;
			}
			held = held ? { text: `${held.text} ${sentence.text}`, isInside: sentence.isInside } : sentence;
		}
		return held ? [...utterances, held] : utterances;
	}

	// Sentences; one that is longer than `max` is cut into clauses or words.
	split(text, max) {
		const sentences = [];
		let start = 0;
		for (const found of [...text.matchAll(SENTENCE_END), null]) {
			const end = found ? found.index + found[0].length : text.length;
			if (found && !this.isOver(text, start, found)) continue;
			let rest = text.slice(start, end).trim();
			while (rest.length > max) {
				const cut = findClauseEnd(rest, max);
				sentences.push({ text: rest.slice(0, cut).trim(), isInside: true });
				rest = rest.slice(cut).trim();
			}
			if (rest) sentences.push({ text: rest, isInside: false });
			start = end;
		}
		return sentences;
	}

	// Whether the stops end a sentence: not in "Dr. Lee", "No. 5", "J. R." or before a small letter.
	isOver(text, start, { index, 0: stops }) {
		const following = /^\s+["'“‘([]*(.)/u.exec(text.slice(index + stops.length))?.[1] ?? "";
		if (!following) return true;
		if (/[\p{Ll},;:%]/u.test(following)) return false;
		if (stops !== ".") return true;
		const word = /(?:\p{L}\.)*[\p{L}\p{N}]+$/u.exec(text.slice(start, index))?.[0].toLowerCase() ?? "";
		if (/^\(?(?:\d{1,3}|\p{L}|[ivx]{1,5})$/iu.test(text.slice(start, index).trim())) return false; // a list number
		if (/\d/.test(following) && this.beforeNumbers.has(word)) return false;
		return !(/(?:^|\.)\p{Lu}$/u.test(/[\p{L}.]+$/u.exec(text.slice(start, index))?.[0] ?? "") || this.abbreviations.has(word));
	}
}

// Paragraphs and list items: {text, isParagraph}. A single line break inside a paragraph is white space.
function readBlocks(text) {
	const clean = text.normalize("NFC").replace(/[^\S\n]*(?:(?![©®™])[\p{Extended_Pictographic}\u200d\ufe0f\u{1f3fb}-\u{1f3ff}\u{e0000}-\u{e007f}])+/gu, "");
	const blocks = [];
	let held = "";
	const close = (isParagraph) => {
		if (held.trim()) blocks.push({ text: held.trim(), isParagraph });
		else if (isParagraph && blocks.length) blocks.at(-1).isParagraph = true;
		held = "";
	};
	for (const line of clean.split(/\r\n|[\n\r\v\f\x85\u2028\u2029]/)) {
		if (!line.trim() || RULE.test(line)) { close(true); continue; }
		const item = line.trim(), isItem = LIST_MARK.test(item), words = item.replace(LIST_MARK, "").replace(/\t+/g, (tab, at, all) => (at && /[,;:.!?]/.test(all[at - 1]) ? " " : ", "));
		if (held && (isItem || endsItem(held, words))) close(false);
		held += ` ${words}`;
	}
	close(true);
	return blocks;
}

// Whether a line break after `line` ends an item: a short line without a stop, before a capital.
function endsItem(line, following) {
	const end = line.trim().replace(CLOSERS, "").at(-1);
	if (/[.!?…,;:\-–—/&+(]/.test(end)) return false;
	return /^["'“‘([]*\p{Lu}/u.test(following) ? line.trim().length < 2 * MIN_WRAPPED_CHARS : line.trim().length < MIN_WRAPPED_CHARS;
}

// The last clause end in the later part of the limit, else the last space, else the limit.
function findClauseEnd(text, max) {
	for (const [i, pattern] of CLAUSE_ENDS.entries()) {
		const ends = Array.from(text.slice(0, max + 1).matchAll(pattern), (found) => found.index + found[0].length);
		const fitting = ends.filter((end) => end > [max / 2, max / 3, 0][i] && end <= max + 1);
		if (fitting.length) return fitting.at(-1);
	}
	return max;
}

// Quotation marks and ellipses are removed; an utterance ends with a stop.
function makePlain(text, isInside) {
	let plain = text.replace(/(?<![\p{L}\p{N}])['’‘‚]|['’‘‚](?![\p{L}\p{N}])|["“”„«»]/gu, "");
	plain = plain.replace(/\s*(?:\.(?:\s?\.)+|\.*…[.…]*)\s*(.?)/gu, (_, next) => {
		if (!next || /[?!,;:]/.test(next)) return next || ".";
		return (/\p{Ll}/u.test(next) ? ", " : ". ") + next;
	}).replace(/^[.,\s]+/u, "").replace(/\s+/gu, " ").trim();
	plain = plain.replace(/(?<![\p{L}\p{N}'’.-])([A-Z])\. (?=\p{Lu})/gu, "$1; "); // "P M. Then": the voice would not pause
	return !isInside && /[\p{L}\p{N}]$/u.test(plain.replace(CLOSERS, "")) ? `${plain}.` : plain;
}

// The embedded voice reads Latin letters only.
function checkLetters(text) {
	const foreign = /(?!\p{Script=Latin})\p{L}/u.exec(text);
	if (foreign) throw new Error(`The text has the letter “${foreign[0]}”, and this voice speaks only English.`);
}
