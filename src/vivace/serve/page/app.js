// The page's main module: connects the form, the player, live mode, the history and the voices.
import * as api from "./api.js";
import { Player, Track } from "./audio.js";
import { clockTime, download, Past } from "./history.js";
import { Live } from "./live.js";
import * as settings from "./settings.js";
import { titled, Voices } from "./voices.js";
import { Wave } from "./wave.js";

const { $, put } = settings;
const PREVIEW = "Hello. This is how I sound when I read a sentence to you.";

const player = new Player();
const wave = new Wave($("wave"), player);
let models = [];
let current = null; // the item in the waveform: {track, text, words, settings}
let running = null; // the AbortController of the active request

const model = () => models.find(({ id }) => id === $("model").value);
const rate = () => model()?.sample_rate ?? 24000;
const openSound = () => player.open(rate()).catch(fail);
const isBusy = () => Boolean(running || player.isPlaying || live.isBusy);

const say = (text) => { if ($("status").textContent !== text) put("status", text); };

function fail(error) {
	if (error.name === "AbortError") return;
	const isKey = error.status === 401;
	$("error").hidden = isKey && !api.hasKey();
	put("error", isKey ? "The server does not accept this key." : error.message);
	if (isKey) askKey(true);
	say(isKey ? "A key is needed." : "That did not work.");
	settle();
}

const clearError = () => { $("error").hidden = true; };

function askKey(isAsked) {
	$("key-toggle").hidden = false;
	$("key-form").hidden = !isAsked;
	$("key-toggle").ariaExpanded = String(isAsked);
	if (isAsked) $("key").focus();
}

function begin(item) {
	current = { settings: settings.values(), ...item };
	wave.show(current.track);
	player.play(current.track).catch(fail);
	settle();
	return current;
}

function grow(item, bytes) {
	item.track.add(new Int16Array(bytes.buffer ?? bytes));
	item.lastAt = performance.now();
	player.feed();
	wave.draw();
}

function end(item, isKept = true) {
	item.track.isEnded = true;
	item.seconds = item.track.seconds;
	player.feed();
	wave.draw();
	if (isKept && item.track.length) past.add(item);
	settle();
}

async function speak(text, isKept = true) {
	stop();
	clearError();
	if (!text.trim()) {
		say("There is nothing to say yet.");
		return $("text").focus();
	}
	const began = performance.now(), control = running = new AbortController();
	let item = null;
	say("Waiting for the first sound");
	["first-audio", "real-time", "buffer"].forEach((id) => put(id, "–"));
	settle();
	openSound(); // browsers allow it only inside a user gesture
	try {
		for await (const { bytes, words } of api.speak({ ...settings.request(), input: text }, control.signal)) {
			item ??= begin({ track: new Track(rate()), text, began, chars: [...text], words: [] });
			item.words.push(...(words ?? []));
			if (bytes) grow(item, bytes);
		}
	} catch (error) {
		if (!item?.track.length) player.stop();
		fail(error);
	}
	if (running === control) running = null;
	if (item) end(item, isKept);
	settle();
}

function stop() {
	if (isBusy()) say("Stopped.");
	running?.abort();
	running = null;
	live.cancel();
	player.stop();
	wave.draw();
	settle();
}

function replay(item, second = 0) {
	clearError();
	if (item !== current) stop();
	current = item;
	wave.show(item.track);
	player.play(item.track, second * item.track.rate).catch(fail);
	settle();
}

player.addEventListener("start", () => {
	if (current.began) current.firstAudio ??= performance.now() - current.began;
	say("Speaking");
	settle();
});
player.addEventListener("done", () => {
	say(`Spoken: ${player.track.seconds.toFixed(1)} seconds.`);
	settle();
});

function settle() {
	$("stop").disabled = !isBusy();
	$("download").disabled = $("replay").disabled = !current?.track.length;
	showFigures();
}

function showFigures() {
	if (!current || (running && current.track.isEnded)) return;
	const { track, firstAudio, lastAt, began, isLive } = current, at = player.position;
	const { isWaiting, gaps } = player.state, { isPlaying } = player;
	const times = lastAt && !isLive ? (1000 * track.seconds) / (lastAt - began) : 0;
	put("first-audio", firstAudio ? `${Math.round(firstAudio)} ms` : "–");
	put("real-time", times ? `${times.toFixed(1)}×` : isLive ? "live" : "–");
	put("buffer", isPlaying ? (isWaiting ? "waiting" : `${(track.seconds - at).toFixed(1)} s`)
		: gaps && !isLive ? `${gaps} gap${gaps > 1 ? "s" : ""}` : "no gaps"); // in live mode gaps come from pauses in typing
	showWord(isPlaying && current.words?.findLast(({ start }) => start <= at));
	put("clock", `${clockTime(at).replace(" s", "")} / ${clockTime(track.seconds)}`);
	Object.assign($("wave"), { ariaValueMax: track.seconds.toFixed(1), ariaValueNow: at.toFixed(1),
		ariaValueText: `${at.toFixed()} of ${track.seconds.toFixed()} seconds` });
}

// Shows the word that is playing, between its neighbours.
function showWord(word) {
	const { start_char: from, end_char: to } = word || {};
	[[Math.max(0, from - 60), from], [from, to], [to, to + 60]].forEach((span, i) => {
		$("said").children[i].textContent = word ? current.chars.slice(...span).join("") : "";
	});
}

setInterval(() => { if (isBusy()) showFigures(); }, 100);

function changed() {
	put("speed-value", `${Number($("speed").value)}×`);
	put("count", `${$("text").value.length.toLocaleString("en")} characters`);
	clearTimeout(changed.timer); // browsers limit how often the address may change
	changed.timer = setTimeout(() => history.replaceState(null, "", settings.address()), 300);
}

const live = new Live({
	// Consecutive utterances extend one track while it plays.
	start(rate) {
		const isNext = current?.isLive && player.track === current.track && player.isPlaying;
		if (isNext) current.track.isEnded = false;
		else begin({ track: new Track(rate), text: "", began: live.saidAt, isLive: true, from: spokenTo });
	},
	grow: (bytes) => grow(current, bytes),
	end() {
		spokenTo = live.sent.length;
		if (!current?.isLive || current.track.isEnded) return settle();
		current.text = live.sent.slice(current.from).trim();
		end(current);
	},
	fail,
});
let spokenTo = 0; // characters of the text that belong to earlier tracks

function follow() {
	if (!$("live").checked) return;
	clearError();
	running?.abort();
	openSound();
	const { value, selectionEnd } = $("text");
	live.type(value, settings.request(), selectionEnd === value.length);
	spokenTo = Math.min(spokenTo, value.length);
	settle();
}

function switchLive() {
	$("live-hint").hidden = !$("live").checked;
	live.finish();
	live.sent = $("text").value; // text that is already there is not spoken
	spokenTo = live.sent.length;
	if ($("live").checked) {
		say("Live: type, and it is spoken.");
		$("text").focus();
		$("text").setSelectionRange(spokenTo, spokenTo);
	}
	changed();
}

function act() {
	if (live.isOpen) return live.finish();
	live.sent = $("text").value;
	spokenTo = live.sent.length;
	return speak($("text").value);
}

$("speak").onclick = act;
$("stop").onclick = stop;
$("replay").onclick = () => replay(current);
$("download").onclick = () => download(current);
$("preview").onclick = () => speak(PREVIEW, false);
$("live").onchange = switchLive;
$("text").oninput = () => { changed(); follow(); };
$("settings").oninput = changed;
addEventListener("submit", (event) => event.preventDefault()); // forms never reload the page
$("link").onclick = async () => {
	const link = new URL(settings.address($("text").value), location.href).href;
	try {
		await navigator.clipboard.writeText(link);
		say("The link with this text and these settings is copied.");
	} catch {
		history.replaceState(null, "", link);
		say("The link is in the address bar.");
	}
};

// Opening the audio device takes a while, so the first gesture does it before Speak is pressed.
for (const kind of ["keydown", "pointerdown"]) addEventListener(kind, openSound, { once: true });
addEventListener("keydown", (event) => {
	if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
		event.preventDefault();
		act();
	} else if (event.key === "Escape") stop();
});

$("wave").onclick = ({ clientX }) => { if (current?.track.length) replay(current, wave.secondAt(clientX)); };
$("wave").onkeydown = (event) => {
	const step = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageUp: 10, PageDown: -10 }[event.key];
	if (event.ctrlKey || !current?.track.length || !(step || ["Home", "Enter", " "].includes(event.key))) return;
	event.preventDefault();
	replay(current, step ? Math.max(0, Math.min(current.track.seconds - 0.1, player.position + step)) : 0);
};

$("theme").onclick = toggleTheme; // defined in theme.js
addEventListener("theme", () => {
	wave.readColours();
	past.show();
});

$("key-toggle").onclick = () => askKey($("key-form").hidden);
$("key-form").onsubmit = () => {
	api.setKey($("key").value);
	askKey(false);
	clearError();
	live.close();
	load();
};

const voices = new Voices({
	fail, say, changed,
	play: (track) => replay({ track: Object.assign(track, { isEnded: true }), text: "recording" }),
	reload: (wanted) => showModel(wanted),
});
const past = new Past({
	play: replay,
	use({ text, settings: used }) {
		settings.fill({ model: $("model").value, ...used, text });
		switchLive();
		$("text").focus();
	},
});

async function showModel(wanted = settings.voice()) {
	const { id, languages, device, sample_rate: rate } = model(), language = $("language").value;
	put("model-line", [models.length < 2 && id !== "vivace" && id, device, `${rate / 1000} kHz`].filter(Boolean).join(" · "));
	$("language").replaceChildren(...languages.map((each) => new Option(titled(each), each)));
	if (languages.includes(language)) $("language").value = language;
	await voices.load(model(), models, wanted);
}

async function load() {
	const given = settings.readAddress();
	try {
		models = await api.getModels();
		$("model").replaceChildren(...models.map(({ id }) => new Option(id, id)));
		if (models.some(({ id }) => id === given.model)) $("model").value = given.model;
		$("model").hidden = models.length < 2;
		await showModel(given.voice);
		settings.fill({ voice: settings.voice(), ...given, model: $("model").value });
		$("live").checked = Boolean(given.live);
		say("Ready");
		switchLive();
	} catch (error) {
		fail(error);
	}
}

$("model").onchange = () => {
	live.close();
	showModel().catch(fail);
};

wave.readColours();
load();
