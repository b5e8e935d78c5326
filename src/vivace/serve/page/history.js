// The history of spoken texts. Texts stay in this browser's storage; audio is lost with the page.
import { $, make } from "./dom.js";
import { drawStill } from "./wave.js";

const MAX_ITEMS = 20, STORE = "vivace.history";

export const clockTime = (seconds) => (seconds < 60 ? `${seconds.toFixed(1)} s`
	: `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`);

export class Past {
	// `page`: play(item), save(item), use(item)
	constructor(page) {
		this.page = page;
		this.items = [];
		try {
			this.items = JSON.parse(localStorage.getItem(STORE)).filter(({ text, settings, seconds }) => text && settings && seconds);
		} catch { /* none yet, or none that we wrote */ }
		$("clear").onclick = () => this.keep([]);
		this.show();
	}

	// Also called for an item that has grown.
	add(item) { this.keep([item, ...this.items.filter((each) => each !== item)].slice(0, MAX_ITEMS)); }

	keep(items) {
		this.items = items;
		const words = items.map(({ text, settings, seconds }) => ({ text: text.slice(0, 5000), settings, seconds }));
		try { localStorage.setItem(STORE, JSON.stringify(words)); } catch { /* it lasts until a reload */ }
		this.show();
	}

	show() {
		$("past").hidden = !this.items.length;
		$("history").replaceChildren(...this.items.map((item) => this.row(item)));
		for (const canvas of $("history").querySelectorAll("canvas")) drawStill(canvas, canvas.track, "--soft");
	}

	row(item) {
		const words = make("p", { textContent: item.text.slice(0, 300) });
		const button = (name, act) => make("button", {
			textContent: name, className: "quiet", onclick: act, ariaDescription: words.textContent,
		});
		const row = make("li"), about = [item.settings.voice, clockTime(item.seconds)].filter(Boolean).join(" · ");
		row.append(words, make("small", { textContent: about }));
		if (item.track) {
			row.append(make("canvas", { track: item.track, ariaHidden: "true" }),
				button("Play", () => this.page.play(item)), button("Save", () => this.page.save(item)));
		}
		row.append(button("Use again", () => this.page.use(item)));
		return row;
	}
}
