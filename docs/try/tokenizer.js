// The byte-level BPE tokenizer of a checkpoint: the same ids as `vivace.text.tokenizer`.

// Candidates for tokens: contractions, words, single digits, punctuation, line ends, spaces.
// `\p{White_Space}` instead of `\s`: JavaScript's `\s` differs in U+0085 and U+FEFF.
const CONTRACTION = "'(?:[sSſ]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])";
const CANDIDATE = new RegExp([
	CONTRACTION,
	"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+",
	"\\p{N}",
	" ?[^\\p{White_Space}\\p{L}\\p{N}]+[\\r\\n]*",
	"\\p{White_Space}*[\\r\\n]+",
	"\\p{White_Space}+(?!\\P{White_Space})",
	"\\p{White_Space}+",
].join("|"), "gu");

// The character that stands for each byte in vocab.json: printable bytes stand for themselves.
function byteSymbols() {
	const isPrintable = (byte) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
	let next = 256;
	return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isPrintable(byte) ? byte : next++));
}

const SYMBOLS = byteSymbols();

export class Tokenizer {
	// `vocab`: ids by token. `merges`: the text of merges.txt.
	constructor(vocab, merges) {
		this.vocab = new Map(Object.entries(vocab));
		const lines = merges.split("\n").filter((line, i) => line && !(i === 0 && line.startsWith("#version:")));
		this.ranks = new Map(lines.map((line, rank) => [line, rank]));
		this.known = new Map();
	}

	// The ids of a text, without special tokens.
	encode(text) {
		if (!text.isWellFormed?.() && /\p{Surrogate}/u.test(text)) throw new Error("The text is not valid Unicode.");
		return (text.normalize("NFC").match(CANDIDATE) ?? []).flatMap((word) => this.encodeWord(word));
	}

	encodeWord(word) {
		let ids = this.known.get(word);
		if (!ids) {
			const symbols = Array.from(new TextEncoder().encode(word), (byte) => SYMBOLS[byte]);
			ids = this.merge(symbols).map((symbol) => this.vocab.get(symbol));
			if (word.length < 32) this.known.set(word, ids);
		}
		return ids;
	}

	// Joins the pair of the lowest rank, leftmost first, until no pair has a rank.
	merge(symbols) {
		while (symbols.length > 1) {
			let best = -1, lowest = Infinity;
			for (let i = 0; i + 1 < symbols.length; i++) {
				const rank = this.ranks.get(`${symbols[i]} ${symbols[i + 1]}`) ?? Infinity;
				if (rank < lowest) [best, lowest] = [i, rank];
			}
			if (best < 0) break;
			symbols.splice(best, 2, symbols[best] + symbols[best + 1]);
		}
		return symbols;
	}
}
