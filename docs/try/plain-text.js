// What text-rules.js has instead of parts of the package: texts of the page have no source spans, no
// lexicon and no Markdown, and arrive as a whole.
export const join = (parts, separator = "") => parts.join(separator);
export const rewrite = (old, words) => words;
export const split = (text, separator) => text.split(separator);
export const substitute = (pattern, words, text, count = 0) => pattern.sub(words, text, count);

// "LATIN" for a Latin letter. The page rejects all other scripts.
export const scriptsOf = (letter) => new Set(/\p{L}/u.test(letter) ? [/\p{Script=Latin}/u.test(letter) ? "LATIN" : "OTHER"] : []);

// Reads spelling marks such as `[spell: NASA]`.
export const respeller = (findPattern, readMark) => class {
	feed(text) { return findPattern().sub((mark) => readMark(mark, { is_english: true }), text); }
	finish(text = "") { return this.feed(text); }
};

export class Unsupported {
	constructor() { throw new Error("not supported in the browser"); }
}
