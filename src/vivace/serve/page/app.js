// The page's main module: connects the text, the playback, live mode, the history and the voices.
import * as api from "./api.js";
import { Player, Track } from "./audio.js";
import { toCurl, toPython } from "./code.js";
import { $, clearErrors, copyFrom, make, put, say, showError } from "./dom.js";
import { Past } from "./history.js";
import { Live } from "./live.js";
import { Makers } from "./makers.js";
import * as settings from "./settings.js";
import { PlaybackView } from "./playback_view.js";
import { connectText, isSample, showCount } from "./text.js";
import { titled, Voices } from "./voices.js";

const PREVIEW = "Hello. This is how I sound when I read a sentence to you.";

const LOADING_POLL_MS = 1000;

const player = new Player();
let models = [];
let running = null; // the AbortController of the active request

const model = () => models.find(({ id }) => id === $("model").value);
const rate = () => model()?.sample_rate ?? 24000;
const openSound = () => player.open(rate()).catch(fail);
const isBusy = () => Boolean(running || player.isPlaying || live.isBusy);

function fail(error, place = "error") {
	if (error.name === "AbortError") return;
	if (error.status === 401) {
		askKey(true);
		if (api.hasKey()) showError("key-error", "The server does not accept this key.");
		say("A key is needed.");
	} else {
		showError(place, error.message);
		say("That did not work.");
	}
	playback.settle();
}

function askKey(isAsked) {
	$("key-toggle").hidden = false;
	$("reference").hidden = true; // it needs the key too, and a link cannot send it
	$("key-form").hidden = !isAsked;
	$("key-toggle").ariaExpanded = String(isAsked);
	if (isAsked) $("key").focus();
}

// --- Speaking -----------------------------------------------------------------------------------

function begin(item) {
	const begun = { settings: settings.values(), ...item };
	playback.play(begun).catch(fail);
	return begun;
}

function end(item, isKept = true) {
	playback.end(item);
	if (isKept && item.track.length) past.add(item);
	playback.settle();
}

// Speaks a text. `isPreview`: with one voice, beside which errors are shown, and not in the history.
async function speak(text, { voice, isPreview = false } = {}) {
	stop();
	clearErrors();
	openSound(); // browsers allow it only inside a user gesture
	const control = running = new AbortController();
	playback.settle();
	await loaded;
	if (!models.length) await (loaded = load());
	if (running !== control) return; // stopped meanwhile
	if (models.length && !isMissing(text)) await stream(text, control, voice, isPreview);
	if (running === control) running = null;
	playback.settle();
}

async function stream(text, control, voice, isPreview) {
	const began = performance.now(), request = { ...settings.request(), ...(voice && { voice }), input: text };
	let item = null;
	say("Waiting for the first sound");
	try {
		for await (const { bytes, words, usage, provenance } of api.speak(request, control.signal)) {
			item ??= begin({ track: new Track(rate(), provenance), text, began, chars: [...text], words: [] });
			item.words.push(...(words ?? []));
			if (bytes) playback.grow(item, bytes);
			if (usage) playback.noteLosses(item, usage);
		}
	} catch (error) {
		if (!item?.track.length) player.stop();
		fail(error, isPreview ? "voice-error" : "error");
	}
	if (running === control) running = null;
	if (item) end(item, !isPreview);
}

// Whether the text or a voice is missing. Shows a message and focuses the field.
function isMissing(text) {
	if (!text.trim()) {
		say("Enter a text to speak.");
		$("text").focus();
	} else if (!voices.all.length && model().type === "base") {
		const go = () => { $("clone").scrollIntoView({ block: "nearest" }); $("transcript").focus({ preventScroll: true }); };
		say("No voice yet.");
		showError("error", "This model speaks with voices that you clone, and there is none yet.", make("button", { textContent: "Clone a voice", onclick: go }));
	} else if (!voices.all.length && model().type === "voice_design" && !$("instruct").value.trim()) {
		say("No voice yet.");
		showError("error", "Describe the voice first, in the field Instructions.");
		$("instruct").focus({ preventScroll: true });
	} else return false;
	return true;
}

function stop() {
	if (isBusy()) say("Stopped.");
	running?.abort();
	running = null;
	live.cancel();
	player.stop();
	playback.wave.draw();
	playback.settle();
}

function replay(item) {
	clearErrors();
	if (item !== playback.item) stop();
	playback.play(item).catch(fail);
}

function act() {
	if (live.isOpen) return live.finish();
	live.sent = $("text").value;
	spokenTo = live.sent.length;
	return speak($("text").value);
}

const playback = new PlaybackView(player, isBusy);

// --- Live mode ----------------------------------------------------------------------------------

const live = new Live({
	// Consecutive utterances extend one track while it plays.
	start(rate, provenance) {
		const { item } = playback, isNext = item?.isLive && player.track === item.track && player.isPlaying;
		if (isNext) item.track.isEnded = false;
		else begin({ track: new Track(rate, provenance), text: "", began: live.saidAt, isLive: true, from: spokenTo });
	},
	grow: (bytes) => playback.grow(playback.item, bytes),
	noteLosses: (report) => { if (playback.item?.isLive) playback.noteLosses(playback.item, report); },
	end() {
		const { item } = playback;
		spokenTo = live.sent.length;
		if (!item?.isLive || item.track.isEnded) return playback.settle();
		item.text = live.sent.slice(item.from).trim();
		end(item);
	},
	fail,
});
let spokenTo = 0; // characters of the text that belong to earlier tracks

function follow() {
	if (!$("live").checked) return;
	clearErrors();
	running?.abort();
	if (!player.isPaused) openSound();
	const { value, selectionEnd } = $("text");
	if (models.length && value.trim() && isMissing(value)) return;
	live.type(value, settings.request(), selectionEnd === value.length);
	spokenTo = Math.min(spokenTo, value.length);
	playback.settle();
}

function switchLive() {
	const isLive = $("live").checked;
	live.finish();
	if (isLive && isSample()) $("text").value = "";
	live.sent = $("text").value; // text that is already there is not spoken
	spokenTo = live.sent.length;
	if (isLive) {
		say("Live: type, and it is spoken.");
		$("text").focus();
		$("text").setSelectionRange(spokenTo, spokenTo);
	}
	changed();
}

// --- Controls -----------------------------------------------------------------------------------

function changed() {
	put("speed-value", `${Number($("speed").value)}×`);
	showCount();
	clearTimeout(changed.timer); // browsers limit how often the address may change
	changed.timer = setTimeout(() => history.replaceState(null, "", settings.address()), 300);
}

async function copyCode(button, write, name) {
	const code = write({ ...settings.request(), input: $("text").value, response_format: $("format").value });
	put("snippet", code);
	$("snippet").hidden = false;
	if (!(await copyFrom(button, code, name))) say(`${name} is shown below.`);
}

connectText({ changed, speak: act });
$("speak").onclick = act;
$("stop").onclick = stop;
$("live").onchange = switchLive;
$("text").oninput = () => { changed(); follow(); };
$("seed").oninput = () => { $("seed").value = $("seed").value.replace(/\D/g, ""); };
$("settings").oninput = changed;
$("curl").onclick = () => copyCode($("curl"), toCurl, "The command");
$("python").onclick = () => copyCode($("python"), toPython, "The program");
$("link").onclick = async () => {
	const link = new URL(settings.address($("text").value), location.href).href;
	if (await copyFrom($("link"), link, "The link with this text and these settings")) return;
	history.replaceState(null, "", link);
	say("The link is in the address bar.");
};
addEventListener("submit", (event) => event.preventDefault()); // forms never reload the page

// Opening the audio device takes a while, so the first gesture does it before Speak is pressed.
for (const kind of ["keydown", "pointerdown"]) {
	addEventListener(kind, () => { if (!player.context) openSound(); }, { once: true });
}
addEventListener("keydown", (event) => {
	if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
		event.preventDefault();
		act();
	} else if (event.key === "Escape") stop();
});

$("theme").onclick = toggleTheme; // defined in theme.js
addEventListener("theme", () => {
	playback.wave.readColours();
	past.show();
});

$("key-toggle").onclick = () => askKey($("key-form").hidden);
$("key-form").onsubmit = () => {
	api.setKey($("key").value);
	askKey(false);
	clearErrors();
	live.close();
	loaded = load();
	$("text").focus();
};

// --- Models and voices --------------------------------------------------------------------------

const voices = new Voices({ changed, preview: (voice) => speak(PREVIEW, { voice, isPreview: true }), reload: () => showModel() });
const makers = new Makers({
	play: (track) => replay({ track: Object.assign(track, { isEnded: true }), text: "recording" }),
	choose(id) {
		$("model").value = id;
		$("model").onchange();
	},
	reload: (wanted) => showModel(wanted),
});
const past = new Past({
	play: replay,
	save: (item) => playback.save(item),
	use({ text, settings: used }) {
		settings.fill({ model: $("model").value, ...used, text });
		switchLive();
		$("text").focus();
	},
});

async function showModel(wanted = settings.voice()) {
	const { languages, device, sample_rate: rate } = model(), language = $("language").value;
	put("device", `${device}, ${rate / 1000} kHz`);
	$("language").replaceChildren(...languages.map((each) => new Option(titled(each), each)));
	if (languages.includes(language)) $("language").value = language;
	makers.show(model(), models);
	await voices.load(model(), wanted);
}

// The served models, as soon as the server has loaded one.
async function getLoaded() {
	for (;;) {
		const found = await api.getModels();
		if (found.length) return found;
		say("The server is loading its model.");
		await new Promise((resolve) => setTimeout(resolve, LOADING_POLL_MS));
	}
}

async function load() {
	const given = settings.readAddress();
	try {
		models = await getLoaded();
		$("model").replaceChildren(...models.map(({ id }) => new Option(id, id)));
		if (models.some(({ id }) => id === given.model)) $("model").value = given.model;
		$("model").hidden = models.length < 2;
		$("tagline").hidden = models.length > 1;
		await showModel(given.voice);
		settings.fill({ voice: settings.voice(), ...given, model: $("model").value });
		voices.chosen();
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

let loaded = load();
