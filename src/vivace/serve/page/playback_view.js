// Shows the current item: waveform, playing word, transport and figures. The view is visible once
// there is audio. An item is {track, text, settings}, and with it what was measured.
import { ApiError, encode } from "./api.js";
import { PEAK_S } from "./audio.js";
import { $, clearErrors, make, put, say, showError } from "./dom.js";
import { clockTime } from "./history.js";
import { Wave } from "./wave.js";

const WAV_COMMENT = "AI-generated speech; made with Vivace";
const MAX_LISTED = 5; // words in the status
const VOLUME_STORE = "vivace.volume";
const AUDIBLE_PEAK = 10 ** (-50 / 20); // -50 dBFS, as in the server's `audible_ms`

// The sentences of the status about text that was not spoken.
function losses({ skipped = [], missing = [] }) {
	const list = (words) => words.slice(0, MAX_LISTED).join(", ") + (words.length > MAX_LISTED ? ", …" : "");
	return (skipped.length ? ` Left out, because this model does not read it: ${list(skipped)}.` : "")
		+ (missing.length ? ` Not spoken: ${list(missing)}.` : "");
}

export class PlaybackView {
	// `isBusy()`: whether a request, playback or live speech is active.
	constructor(player, isBusy) {
		Object.assign(this, { player, isBusy, item: null, wave: new Wave($("wave"), player) });
		$("play").onclick = () => this.toggle();
		$("download").onclick = () => this.save(this.item);
		$("wave").onclick = ({ clientX }) => this.replay(this.wave.secondAt(clientX));
		$("wave").onkeydown = (event) => this.pressed(event);
		this.connectVolume();
		player.addEventListener("start", () => this.started());
		player.addEventListener("done", () => {
			say(`Spoken: ${player.track.seconds.toFixed(1)} seconds.${losses(this.item)}`);
			this.settle();
		});
		setInterval(() => { if (isBusy()) this.showFigures(); }, 100);
		this.wave.readColours();
	}

	// Shows an item and plays it from `second`. Returns the promise of playback.
	play(item, second = 0) {
		this.item = item;
		$("playback").hidden = false;
		this.wave.show(item.track);
		const started = this.player.play(item.track, second * item.track.rate);
		this.settle();
		return started;
	}

	replay(second = 0) {
		clearErrors();
		return this.play(this.item, second);
	}

	started() {
		if (this.item.began) this.item.firstAudio ??= performance.now() - this.item.began;
		say("Speaking");
		this.settle();
	}

	grow(item, bytes) {
		item.track.add(new Int16Array(bytes.buffer ?? bytes));
		item.lastAt = performance.now();
		if (item.audibleAt === undefined && this.audiblePeak(item) >= 0) item.audibleAt = item.lastAt;
		this.redraw();
	}

	// Keeps what the server's report at the end of speech says about text that was not spoken.
	noteLosses(item, { skipped = [], missing_words: missing = [] }) {
		item.skipped = [...(item.skipped ?? []), ...skipped];
		item.missing = [...(item.missing ?? []), ...missing];
	}

	audiblePeak({ track }) { return track.peaks.findIndex((peak) => peak > AUDIBLE_PEAK); }

	// Milliseconds until the first audible sample was there and playback reached it. Undefined: not yet.
	audible(item) {
		const { began, firstAudio, audibleAt } = item;
		if (!firstAudio || audibleAt === undefined) return undefined;
		return Math.max(audibleAt - began, firstAudio + 1000 * PEAK_S * this.audiblePeak(item));
	}

	end(item) {
		item.track.isEnded = true;
		item.seconds = item.track.seconds;
		this.redraw();
	}

	redraw() {
		this.player.feed();
		this.wave.draw();
	}

	toggle() {
		const { player } = this;
		if (!player.isPlaying) return this.replay();
		if (player.isPaused) player.open(player.track.rate);
		else player.pause();
		say(player.isPaused ? "Paused" : "Speaking");
		this.wave.draw();
		this.settle();
	}

	pressed(event) {
		const { track } = this.item;
		const step = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageUp: 10, PageDown: -10 }[event.key];
		if (event.ctrlKey || !(step || ["Home", "Enter", " "].includes(event.key))) return;
		event.preventDefault();
		if (step) this.replay(Math.max(0, Math.min(track.seconds - 0.1, this.player.position + step)));
		else if (event.key === "Home") this.replay();
		else this.toggle();
	}

	connectVolume() {
		const apply = () => this.player.setVolume($("volume").value / 100);
		try { $("volume").value = localStorage.getItem(VOLUME_STORE) ?? 100; } catch { /* storage may be forbidden */ }
		$("volume").oninput = () => {
			apply();
			try { localStorage.setItem(VOLUME_STORE, $("volume").value); } catch { /* it lasts until a reload */ }
		};
		apply();
	}

	// Saves the audio in the chosen format. The server encodes all but WAV.
	async save({ track, text }) {
		const format = $("format").value, words = text.slice(0, 40).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
		clearErrors();
		$("download").disabled = true;
		const comment = track.provenance === null ? "" : WAV_COMMENT;
		try {
			const href = URL.createObjectURL(format === "wav" ? track.toWav(comment) : await encode(track, format));
			make("a", { href, download: `${words || "speech"}.${format}` }).click();
			setTimeout(() => URL.revokeObjectURL(href), 10000);
		} catch (error) {
			const isLong = error instanceof ApiError && error.status === 413;
			showError("download-error", isLong ? "This is too long for the server to convert. Choose WAV." : error.message);
		}
		this.settle();
	}

	settle() {
		const { player } = this;
		$("stop").disabled = !this.isBusy();
		$("download").disabled = !this.item?.track.length;
		put("play", !player.isPlaying ? "Replay" : player.isPaused ? "Resume" : "Pause");
		this.showFigures();
	}

	showFigures() {
		if (!this.item) return;
		const { track, firstAudio, lastAt, began, isLive, words } = this.item, at = this.player.position;
		const { isPlaying, state: { isWaiting, gaps } } = this.player;
		const times = lastAt && !isLive ? (1000 * track.seconds) / (lastAt - began) : 0;
		const milliseconds = (time) => (time ? `${Math.round(time)} ms` : "–");
		put("first-audio", milliseconds(firstAudio));
		put("audible", milliseconds(this.audible(this.item)));
		put("real-time", times ? `${times.toFixed(1)}×` : isLive ? "live" : "–");
		put("buffer", isPlaying ? (isWaiting ? "waiting" : `${(track.seconds - at).toFixed(1)} s`)
			: gaps && !isLive ? `${gaps} gap${gaps > 1 ? "s" : ""}` : "no gaps"); // in live mode gaps come from pauses in typing
		this.showWord(isPlaying && words?.findLast(({ start }) => start <= at));
		put("clock", `${clockTime(at).replace(" s", "")} / ${clockTime(track.seconds)}`);
		Object.assign($("wave"), { ariaValueMax: track.seconds.toFixed(1), ariaValueNow: at.toFixed(1),
			ariaValueText: `${at.toFixed()} of ${track.seconds.toFixed()} seconds` });
	}

	// Shows the word that is playing, between its neighbours.
	showWord(word) {
		const { start_char: from, end_char: to } = word || {}, { chars, words } = this.item;
		$("said").hidden = !words?.length;
		[[Math.max(0, from - 60), from], [from, to], [to, to + 60]].forEach((span, i) => {
			$("said").children[i].textContent = word ? chars.slice(...span).join("") : "";
		});
	}
}
