// Turns a text into utterances and pauses with the package's own rules, which text-rules.js contains.
import { Letters, PartReader, plan_parts as planParts, PlainRules, ScriptOptions } from "./text-rules.js";

const LETTERS = Letters.of(["english"]);

// `reading`: of the exported voice's manifest. The options of `vivace.script.text_settings` for a
// known text without options of the request.
function readOptions(reading) {
	return new ScriptOptions({
		packing: "whole",
		max_chars: reading.max_utterance_chars,
		min_chars: reading.min_utterance_chars,
		normalize: reading.normalize,
		letter_names: new Map(Object.entries(reading.letter_names ?? {})),
		strip_end: reading.strip_end,
		plain_breaks: reading.plain_breaks,
		plain: new PlainRules({
			drops_ellipsis: reading.plain_ellipsis,
			drops_quotes: reading.plain_quotes,
			end_stop: reading.end_stop,
			parts_letters: reading.end_stop && reading.normalize,
		}),
		seam_s: reading.seam_s,
		paragraph_s: reading.paragraph_s,
	});
}

export class ScriptWriter {
	constructor(reading) {
		this.options = readOptions(reading);
	}

	// Utterances and pauses in order: {text} or {pause}. Throws if the text cannot be spoken.
	write(text) {
		const reader = new PartReader(this.options, LETTERS, rejectLetter), parts = planParts(text, reader);
		if (reader.error) throw new Error(`${reader.error.message[0].toUpperCase()}${reader.error.message.slice(1)}.`);
		return parts.map((part) => (typeof part === "string" ? { text: this.options.strip_end ? part.trimEnd() : part } : { pause: part.seconds }));
	}
}

const rejectLetter = (letter) => new Error(`the text has the letter “${letter}”, and this voice speaks only English`);
