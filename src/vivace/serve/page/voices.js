// The list of voices with their descriptions and previews, and mixes of two.
import { deleteVoice, getVoices } from "./api.js";
import { $, clearErrors, make, put, say, showError } from "./dom.js";
import { chooseVoice, voice } from "./settings.js";

export const titled = (text) => text.replace(/[_-]/g, " ").replace(/(^| )\p{L}/gu, (c) => c.toUpperCase());

export class Voices {
	// `page`: preview(voice), changed(), reload()
	constructor(page) {
		Object.assign(this, { page, all: [], mixable: [] });
		$("voices").onchange = $("mix").oninput = () => this.chosen();
		$("forget").onclick = () => this.forget();
	}

	async load(model, wanted) {
		this.all = await getVoices(model.id);
		$("voices").replaceChildren(...this.all.map((each) => this.row(each)));
		if (!this.all.length) put("voices", "No voice yet.");
		const clones = model.capabilities.clone ? [] : this.all.filter(({ type }) => type !== "preset");
		this.mixable = clones.length > 1 ? clones : []; // the server mixes cloned voices
		$("mix-with").replaceChildren(new Option("None", ""),
			...this.mixable.map(({ id, name }) => new Option(titled(name), id)));
		[this.all[0]?.id, model.default_voice, wanted].forEach(chooseVoice);
		this.chosen();
	}

	row({ id, name, description }) {
		const label = make("label"), row = make("div", { className: "voice" });
		label.append(make("input", { type: "radio", name: "voice", value: id, ariaLabel: titled(name), ariaDescription: description }),
			make("b", { textContent: titled(name) }), make("small", { textContent: description, title: description ?? "" }));
		row.append(label, make("button", {
			type: "button", className: "round play", ariaLabel: `Preview ${name}`, onclick: () => this.page.preview(id),
		}));
		return row;
	}

	chosen() {
		const own = document.querySelector("#voices input:checked")?.value;
		for (const row of $("voices").children) { // the Tab key reaches the preview of the chosen voice only
			row.lastChild.tabIndex = row.querySelector("input")?.checked ? 0 : -1;
		}
		const { type } = this.all.find(({ id }) => id === own) ?? {};
		$("forget").hidden = !["audio_sample", "prompt"].includes(type);
		$("mix").hidden = !this.mixable.some(({ id }) => id === own);
		if ($("mix").hidden) $("mix-with").value = "";
		for (const option of $("mix-with").options) option.disabled = option.value === own;
		$("mix-how").hidden = !$("mix-with").value || $("mix-with").value === own;
		put("mix-value", `${$("mix-share").value} %`);
		this.page.changed();
	}

	async forget() {
		const [gone] = voice().split("(");
		if (!confirm(`Delete the voice ${gone}?`)) return;
		clearErrors();
		try {
			await deleteVoice(gone);
			await this.page.reload();
			say(`The voice ${gone} is deleted.`);
		} catch (error) {
			showError("voice-error", error.message);
		}
	}
}
