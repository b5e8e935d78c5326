// The forms that clone and design a voice. A form that the model does not support is replaced by one line.
import { makeVoice } from "./api.js";
import { decode, record, whyNoRecording } from "./audio.js";
import { $, clearErrors, copyFrom, make, put, say, showError, takeFiles } from "./dom.js";
import { drawStill } from "./wave.js";

const MAX_SAMPLE_S = 30, MIN_SAMPLE_S = 1, QUIET = 0.02;
// By capability: the words before "another model", and a model that has the capability.
const NEEDS = {
	clone: ["Needs", "Qwen/Qwen3-TTS-12Hz-0.6B-Base"],
	design: ["Needs", "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign"],
	instruct: ["Instructions need", "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"],
};

// The name under which the server stores a voice: "Zoë Weiß" is "zoe-weiss".
export function toVoiceName(text) {
	const plain = text.trim().toLowerCase().replaceAll("ß", "ss").normalize("NFKD").replace(/\p{M}/gu, "");
	const name = plain.replace(/[^a-z0-9_.]+/g, "-").replace(/^-+|-+$/g, "");
	if (!name) throw new Error("The name needs a letter from A to Z or a digit.");
	return name;
}

export class Makers {
	// `page`: play(track), choose(model), reload(voice)
	constructor(page) {
		Object.assign(this, { page, sample: null, stop: null });
		this.invitation = $("sample-line").textContent;
		takeFiles($("file"), $("drop"), (file) => this.read(file));
		$("record").onclick = () => (this.stop ? this.stop() : this.listen());
		$("sample-play").onclick = () => page.play(this.sample);
		$("clone").onsubmit = () =>
			this.make("clone", "Cloning the voice", { audio_sample: this.sample.toWav(), transcript: $("transcript").value });
		$("design").onsubmit = () =>
			this.make("design", "Designing the voice", { type: "prompt", prompt: $("description").value });
	}

	show(model, models) {
		for (const deed of Object.keys(NEEDS)) {
			const isAble = !model.capabilities[deed], box = $(deed).querySelector("fieldset") ?? $(deed);
			box.disabled = box.hidden = !isAble;
			for (const label of box.labels ?? []) label.hidden = !isAble;
			$(`${deed}-need`).hidden = isAble;
			if (!isAble) $(`${deed}-need`).replaceChildren(...this.need(deed, models));
		}
		$("transcript").parentElement.hidden = Boolean(model.capabilities.clone_in_context);
		if (model.capabilities.clone_in_context) $("transcript").value = "";
		const why = whyNoRecording();
		$("record").disabled = $("record").hidden = Boolean(why);
		put("record-why", why);
		$("record-why").hidden = !why;
	}

	// The line: a button for another served model with the capability, or the command that serves one.
	need(deed, models) {
		const [words, source] = NEEDS[deed], other = models.find(({ capabilities }) => !capabilities[deed]);
		const button = make("button", { type: "button", className: "quiet" });
		if (other) {
			button.textContent = `Use ${other.id}`;
			button.onclick = () => this.page.choose(other.id);
			return [`${words} another model.`, button];
		}
		const command = `vivace serve --model ${source}`;
		button.textContent = "Copy command";
		button.ariaDescription = command; // several buttons have this text
		button.onclick = async () => (await copyFrom(button, command, "The command")) || say(command);
		return [`${words} another model.`, make("code", { textContent: command }), button];
	}

	async attempt(place, work) {
		clearErrors();
		try { await work(); } catch (error) {
			showError(`${place}-error`, error.message);
			say("That did not work.");
		}
	}

	async make(place, doing, fields) {
		const form = $(place), box = form.querySelector("fieldset"), name = form.querySelector("input[required]").value;
		say(doing);
		box.disabled = true;
		await this.attempt(place, async () => {
			const made = await makeVoice({ ...fields, model: $("model").value, name: toVoiceName(name) });
			form.reset();
			if (fields.audio_sample) this.take(null);
			$("model").value = made.model; // a designed voice may be stored with a Base model
			await this.page.reload(made.id);
			say(`The voice ${made.name} is ready.`);
		});
		box.disabled = box.hidden; // the model may be another one now
	}

	async read(file) {
		await this.attempt("clone", async () => {
			const track = await decode(file, MAX_SAMPLE_S).catch(() => {
				throw new Error(`${file.name} cannot be read here. Try wav, mp3, flac or ogg.`);
			});
			this.take(track, file.name);
			$("clone-name").value ||= file.name.replace(/\.[^.]*$/, "").slice(0, 60);
		});
	}

	async listen() {
		put("record", "Stop recording");
		this.stop = () => {};
		await this.attempt("clone", async () => {
			const track = await record(MAX_SAMPLE_S, (grown, stop) => {
				this.stop = stop;
				this.picture(grown, `Recording: ${grown.seconds.toFixed(1)} s of at most ${MAX_SAMPLE_S}`);
			}).catch((error) => {
				throw error.name === "NotAllowedError" ? new Error("The browser did not allow the microphone. Allow it, or choose a file.") : error;
			});
			this.take(track, "Your recording");
		});
		this.stop = null;
		put("record", "Record");
	}

	take(track, name) {
		this.sample = track;
		$("sample-play").hidden = !track;
		const fault = !track ? this.invitation
			: track.seconds < MIN_SAMPLE_S ? "That is too short: a second at least."
			: Math.max(...track.peaks) < QUIET ? "That is silent: check the microphone." : "";
		$("clone-make").disabled = Boolean(fault);
		this.picture(track, fault || `${name}, ${track.seconds.toFixed(1)} s`);
	}

	picture(track, line) {
		const canvas = $("sample-wave");
		canvas.hidden = !track;
		if (track) drawStill(canvas, track, "--accent");
		put("sample-line", line);
	}
}
