// The noise of the draws, as in `vivace.sampling`: every candidate code gets Gumbel noise from a
// Philox4x32-10 counter of (seed; code, codebook, frame). The largest noisy score wins.

const MULTIPLIERS = [0xd2511f53, 0xcd9e8d57];
const KEY_STEPS = [0x9e3779b9, 0xbb67ae85];
const ROUNDS = 10;

// The upper 32 bits of a product of two 32-bit words.
function multiplyHigh(a, b) {
	const a0 = a & 0xffff, a1 = a >>> 16, b0 = b & 0xffff, b1 = b >>> 16;
	const middle = a1 * b0 + Math.floor((a0 * b0) / 0x10000), other = a0 * b1 + (middle % 0x10000);
	return (a1 * b1 + Math.floor(middle / 0x10000) + Math.floor(other / 0x10000)) >>> 0;
}

// Philox4x32-10: four words of a counter and two of a key to four words.
export function philox([a, b, c, d], [k0, k1]) {
	for (let round = 0; round < ROUNDS; round++) {
		const leftHigh = multiplyHigh(a, MULTIPLIERS[0]), left = Math.imul(a, MULTIPLIERS[0]) >>> 0;
		const rightHigh = multiplyHigh(c, MULTIPLIERS[1]), right = Math.imul(c, MULTIPLIERS[1]) >>> 0;
		[a, b, c, d] = [(rightHigh ^ b ^ k0) >>> 0, right, (leftHigh ^ d ^ k1) >>> 0, left];
		k0 = (k0 + KEY_STEPS[0]) >>> 0;
		k1 = (k1 + KEY_STEPS[1]) >>> 0;
	}
	return [a, b, c, d];
}

// A 32-bit word as Gumbel noise in float32. Only 23 bits are used, so it is finite.
export function gumbel(word) {
	const uniform = ((word >>> 9) + 0.5) * 2 ** -23;
	return Math.fround(-Math.log(Math.fround(-Math.log(uniform))));
}

// Noise of the codes `ids` of a codebook in a frame. `seed`: an integer from 0 to 2^53 - 1.
export function noiseOf(seed, frame, codebook, ids) {
	const key = [seed % 2 ** 32, Math.floor(seed / 2 ** 32)];
	let block = -1, words = null;
	return Float32Array.from(ids, (id) => {
		if (id >> 2 !== block) words = philox([block = id >> 2, codebook, frame, 0], key); // four codes share a counter
		return gumbel(words[id & 3]);
	});
}
