// The list of voices, and the forms that clone and design one. A disabled form shows the reason.
import { deleteVoice, getVoices, makeVoice } from "./api.js";
import { decode, record, whyNoRecording } from "./audio.js";
import { $, chooseVoice, make, put, voice } from "./settings.js";
import { drawStill } from "./wave.js";

const MAX_SAMPLE_S = 30, MIN_SAMPLE_S = 1, QUIET = 0.02;

export const titled = (text) => text.replace(/[_-]/g, " ").replace(/(^| )\p{L}/gu, (c) => c.toUpperCase());

export class Voices {
	// `page`: fail(error), say(status), changed(), play(track), reload(voice)
	constructor(page) {
		Object.assign(this, { page, all: [], sample: null, stop: null });
		this.invitation = $("sample-line").textContent;
		$("voices").onchange = () => this.chosen();
		$("forget").onclick = () => this.forget();
		$("design").onsubmit = () =>
			this.make("Designing the voice", $("design"), { type: "prompt", prompt: $("description").value });
		this.connectClone();
	}

	async load(model, models, wanted) {
		this.all = await getVoices(model.id);
		$("voices").replaceChildren(...this.all.map(chip));
		if (!this.all.length) put("voices", model.type === "base" ? "None yet: clone one below." : "Describe it in the instructions, or design one below.");
		[this.all[0]?.id, model.default_voice, wanted].forEach(chooseVoice);
		for (const deed of ["clone", "design", "instruct"]) {
			const reason = whyNot(model, models, deed), box = $(deed).querySelector("fieldset") ?? $(deed);
			$(deed).classList.toggle("off", box.disabled = Boolean(reason));
			explain(deed, reason);
		}
		$("record").disabled = Boolean(whyNoRecording());
		explain("record", whyNoRecording());
		this.chosen();
	}

	chosen() {
		const { name, type } = this.all.find(({ id }) => id === voice()) ?? {};
		$("preview").disabled = !name;
		$("preview").ariaLabel = `Preview ${name ?? "voice"}`;
		$("forget").hidden = !["audio_sample", "prompt"].includes(type);
		this.page.changed();
	}

	async attempt(work) {
		try { await work(); } catch (error) { this.page.fail(error); }
	}

	forget() {
		const gone = voice();
		if (confirm(`Delete the voice ${gone}?`)) {
			this.attempt(async () => {
				await deleteVoice(gone);
				await this.page.reload();
				this.page.say(`The voice ${gone} is deleted.`);
			});
		}
	}

	async make(doing, form, fields) {
		const box = form.querySelector("fieldset"), name = form.querySelector("input[required]").value;
		this.page.say(doing);
		box.disabled = true;
		await this.attempt(async () => {
			const made = await makeVoice({ ...fields, model: $("model").value, name: name.trim().toLowerCase().replace(/[^a-z0-9_.]+/g, "-") });
			form.reset();
			if (fields.audio_sample) this.take(null);
			$("model").value = made.model; // a designed voice may be stored with a Base model
			await this.page.reload(made.id);
			this.page.say(`The voice ${made.name} is ready.`);
		});
		box.disabled = false;
	}

	connectClone() {
		const drop = $("drop"), mark = (isOver) => (event) => {
			event.preventDefault();
			drop.classList.toggle("over", isOver);
		};
		drop.ondragover = mark(true);
		drop.ondragleave = mark(false);
		drop.ondrop = (event) => { mark(false)(event); this.read(event.dataTransfer.files[0]); };
		$("file").onchange = () => this.read($("file").files[0]);
		$("record").onclick = () => (this.stop ? this.stop() : this.listen());
		$("sample-play").onclick = () => this.page.play(this.sample);
		$("clone").onsubmit = () =>
			this.make("Cloning the voice", $("clone"), { audio_sample: this.sample.toWav(), transcript: $("transcript").value });
	}

	async read(file) {
		if (!file) return;
		try {
			this.take(await decode(file, MAX_SAMPLE_S), file.name);
			$("clone-name").value ||= file.name.replace(/\.[^.]*$/, "").slice(0, 60);
		} catch {
			this.page.fail(new Error(`${file.name} cannot be read here. Try wav, mp3, flac or ogg.`));
		}
	}

	async listen() {
		put("record", "Stop recording");
		this.stop = () => {};
		await this.attempt(async () => {
			this.take(await record(MAX_SAMPLE_S, (track, stop) => {
				this.stop = stop;
				this.picture(track, `Recording: ${track.seconds.toFixed(1)} s of at most ${MAX_SAMPLE_S}`);
			}), "Your recording");
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

function chip({ id, name }) {
	const label = make("label");
	label.append(make("input", { type: "radio", name: "voice", value: id }), make("span", { textContent: titled(name) }));
	return label;
}

// The server's reason, and the name of a served model that has the capability.
function whyNot(model, models, deed) {
	const reason = model.capabilities[deed], other = models.find((each) => !each.capabilities[deed]);
	return reason && `${reason}.${other ? ` Choose ${other.id} above.` : ""}`;
}

function explain(id, reason) {
	$(`${id}-why`).hidden = !reason;
	put(`${id}-why`, reason);
}
