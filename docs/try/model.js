// Runs an exported voice (`vivace export --format onnx`): the prompt, the frame loop and the codec.
// onnxruntime is an argument, so that tests run the same code outside a browser.
import { noiseOf } from "./sampling.js";

export const CHUNKS = [1, 2, 4, 8]; // frames of each chunk; the last size repeats
const FORMAT_VERSION = 1;
const FRAMES_PER_ID = 12, MIN_BUDGET = 192; // as in `vivace.engine.utterances.guard`

// Throws unless this page can run the exported voice.
export function checkManifest(manifest) {
	if (manifest.format !== "vivace-onnx" || manifest.format_version !== FORMAT_VERSION) {
		throw new Error(`The voice has the format ${manifest.format} ${manifest.format_version}; this page reads vivace-onnx ${FORMAT_VERSION}.`);
	}
}

const shapeOf = ({ graphs }, graph, name) => graphs[graph].inputs.find((input) => input.name === name).shape;

// Makes the frames of utterances.
export class FrameModel {
	// `session`: an inference session of frame.onnx.
	constructor(ort, manifest, session) {
		Object.assign(this, { ort, manifest, session });
		const { first_codes: first, codebook_size: size, num_codebooks: count } = manifest;
		this.candidates = [first, ...Array.from({ length: count - 1 }, () => Array.from({ length: size }, (_, code) => code))];
		this.sampling = this.samplingInputs(manifest.sampling);
	}

	get voices() { return Object.keys(this.manifest.prompt.before_text); }

	tensor(type, values, shape) { return new this.ort.Tensor(type, values, shape); }

	samplingInputs(sampling) {
		const inputs = {};
		for (const name of ["temperature", "top_p", "repetition_penalty", "predictor_temperature", "predictor_top_p"]) {
			inputs[name] = this.tensor("float32", Float32Array.of(sampling[name]), [1]);
		}
		for (const name of ["top_k", "predictor_top_k"]) {
			inputs[name] = this.tensor("int32", Int32Array.of(sampling[name] || 2 ** 30), [1]); // 0 keeps every code
		}
		return inputs;
	}

	// Rows of a prompt: [text id, first code].
	promptRows(ids, voice) {
		const { before_text: before, text_code: textCode, end_id: endId, pad_id: padId, speech_code: speechCode } = this.manifest.prompt;
		if (!(voice in before)) throw new Error(`Unknown voice ${voice}; available: ${this.voices.join(", ")}`);
		return [...before[voice].auto, ...ids.map((id) => [id, textCode]), [endId, textCode], [padId, speechCode]];
	}

	// Gumbel noise of all candidates of a frame, one codebook after another.
	noise(seed, frame) {
		const parts = this.candidates.map((ids, book) => noiseOf(seed, frame, book, ids));
		const all = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
		parts.reduce((at, part) => (all.set(part, at), at + part.length), 0);
		return all;
	}

	// Yields the codes of each frame of an utterance, as Int32Array.
	async *frames(ids, { voice, seed }) {
		const { manifest, ort } = this, { num_codebooks: width, prompt: { no_code: none, pad_id: padId } } = manifest;
		const rows = this.promptRows(ids, voice), past = new Past(manifest);
		const history = new Uint8Array(manifest.first_codes.length);
		let texts = Int32Array.from(rows, ([text]) => text);
		let codes = Int32Array.from({ length: rows.length * width }, (_, i) => (i % width ? none : rows[i / width][1]));
		const limit = Math.min(manifest.sampling.max_frames, Math.max(MIN_BUDGET, FRAMES_PER_ID * ids.length));
		for (let number = 0; number < limit; number++) {
			const isEarly = number < manifest.sampling.min_frames;
			const noise = this.noise(seed, number);
			const made = await this.session.run({
				...this.sampling,
				text_ids: this.tensor("int32", texts, [texts.length]),
				codes: this.tensor("int32", codes, [texts.length, width]),
				past: past.tensor(ort),
				noise: this.tensor("float32", noise, [noise.length]),
				history: this.tensor("bool", history, [history.length]),
				is_end_banned: this.tensor("bool", Uint8Array.of(isEarly), [1]),
			}, ["next_codes", "new_past", "scores"]);
			if (!made.scores.data.every(Number.isFinite)) throw new Error("The model returned numbers that are not finite.");
			codes = Int32Array.from(made.next_codes.data);
			if (codes[0] === manifest.end_code) return;
			history[manifest.first_codes.indexOf(codes[0])] = 1;
			past.add(made.new_past.data);
			texts = Int32Array.of(padId);
			yield codes;
		}
	}
}

// Keys and values of all rows read so far, in one array that grows.
class Past {
	constructor(manifest) {
		const shape = this.shape = shapeOf(manifest, "frame.onnx", "past").slice(1);
		this.rowSize = shape.reduce((product, size) => product * size, 1);
		this.values = new Float32Array(256 * this.rowSize);
		this.length = 0;
	}

	add(rows) {
		if (this.length + rows.length > this.values.length) {
			const larger = new Float32Array(2 * this.values.length);
			larger.set(this.values.subarray(0, this.length));
			this.values = larger;
		}
		this.values.set(rows, this.length);
		this.length += rows.length;
	}

	tensor(ort) {
		return new ort.Tensor("float32", this.values.subarray(0, this.length), [this.length / this.rowSize, ...this.shape]);
	}
}

// Decodes the frames of one utterance. Any split into calls gives the same samples.
export class Decoder {
	// `session`: an inference session of codec.onnx. `state`, `numFrames`: of frames decoded before.
	constructor(ort, manifest, session, { state = null, numFrames = 0 } = {}) {
		const [size] = shapeOf(manifest, "codec.onnx", "state");
		Object.assign(this, { ort, session, width: manifest.num_codebooks, numFrames });
		this.state = new ort.Tensor("float32", state ?? new Float32Array(size), [size]);
	}

	// `codes`: Int32Array of [frames, codebooks]. Returns the outputs of the graph.
	async run(codes) {
		const { Tensor } = this.ort, count = codes.length / this.width;
		const made = await this.session.run({
			codes: new Tensor("int32", codes, [count, this.width]),
			num_frames: new Tensor("int32", Int32Array.of(this.numFrames), [1]),
			state: this.state,
		});
		this.state = made.new_state;
		this.numFrames += count;
		return made;
	}

	// Returns float samples.
	async decode(codes) { return (await this.run(codes)).samples.data; }
}
