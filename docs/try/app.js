// The page: text, voice and seed to sound. `page/` has the files of the server's web page.
import { Player, Track } from "./page/audio.js";
import { $, clearErrors, make, put, say, showError } from "./page/dom.js";
import { PlaybackView } from "./page/playback_view.js";
import { connectText, isSample, showCount } from "./page/text.js";
import { isolatePage, keepPage } from "./isolation.js";
import { Speaker, whyUnable } from "./speaker.js";

const MAX_CHARS = 5000, MAX_SEED = 2 ** 48, BLOCKED_MS = 2000;
const player = new Player(), speaker = new Speaker(new URL("assets/", document.baseURI), () => put("device", speaker.device));
let isMaking = false, current = 0; // `current`: the number of the last request
const playback = new PlaybackView(player, () => isMaking || player.isPlaying);
const titled = (name) => name[0].toUpperCase() + name.slice(1);

function chosenVoice() { return document.querySelector("#voices input:checked").value; }

// The seed field, or a random seed, which is shown in the figures.
function readSeed() {
	const text = $("seed").value.trim();
	if (!text) return Math.floor(Math.random() * 2 ** 31);
	if (!/^\d+$/.test(text) || Number(text) > MAX_SEED) throw new Error(`Seed must be a whole number from 0 to ${MAX_SEED}, not “${text}”.`);
	return Number(text);
}

function showProgress(done, total) {
	$("progress").hidden = !isMaking; // after a stop the download continues without messages
	if (!isMaking) return;
	$("progress").value = done / total;
	say(`Downloading the voice: ${(done / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB`);
	if (done >= total) say("Starting the voice");
}

// Downloads and starts the voice before the first speech.
async function prepare() {
	say("Starting the voice");
	try {
		await speaker.open(showProgress);
	} finally {
		$("progress").hidden = true;
	}
	put("device", speaker.device);
	keepPage(["./", ...speaker.list.page]);
}

async function speak() {
	const number = ++current, text = $("text").value;
	clearErrors();
	speaker.stop();
	player.stop();
	isMaking = true;
	$("stop").disabled = false;
	try {
		if (!text.trim()) throw new Error("Enter a text to speak.");
		if (text.length > MAX_CHARS) throw new Error(`The text has ${text.length.toLocaleString("en")} characters; this page speaks up to ${MAX_CHARS.toLocaleString("en")}.`);
		const seed = readSeed(), opened = player.open(24000); // inside the click, or the browser blocks sound
		await prepare();
		await opened;
		if (number === current) await speakText(number, text, seed);
	} catch (error) {
		if (number === current) {
			showError("error", error.message);
			say("");
		}
	}
	if (number !== current) return;
	isMaking = false;
	playback.settle();
	$("stop").disabled = !player.isPlaying;
}

// Speaks `text` and feeds the samples to the player as they are made.
async function speakText(number, text, seed) {
	const item = { track: new Track(speaker.manifest.sample_rate), text, began: performance.now(), numFrames: 0, seed, codes: [] };
	say("Reading the text");
	const ended = speaker.speak(text, { voice: chosenVoice(), seed, onSamples: (samples, codes) => {
		if (codes) {
			item.codes.push(...codes);
			item.numFrames += codes.length / speaker.manifest.num_codebooks;
		}
		if (!item.track.length) {
			playback.play(item);
			setTimeout(() => { if (isBlocked()) say("The browser blocks sound. Click the page to hear the speech."); }, BLOCKED_MS);
		}
		playback.grow(item, samples);
	} });
	if (!await ended || number !== current) return;
	playback.end(item);
}

// A browser may keep sound off until a click or a key, and a phone turns it off during a call.
function isBlocked() { return player.isPlaying && !player.isPaused && player.context?.state !== "running"; }

function unblock() { if (isBlocked()) player.context?.resume(); }

function stop() {
	if (!isMaking && !player.isPlaying) return;
	current++;
	isMaking = false;
	speaker.stop();
	player.stop();
	if (playback.item) playback.end(playback.item);
	say("Stopped");
	playback.settle();
	$("stop").disabled = true;
}

function showVoices(names) {
	$("voices").replaceChildren(...names.map((name, i) => {
		const label = make("label"), row = make("div", { className: "voice" });
		label.append(make("input", { type: "radio", name: "voice", value: name, checked: i === 0, ariaLabel: titled(name) }),
			make("b", { textContent: titled(name) }));
		row.append(label);
		return row;
	}));
}

async function start() {
	const unable = whyUnable();
	if (unable) throw new Error(unable);
	await isolatePage(isSample);
	if (!await speaker.prepare()) return showNoVoice();
	showVoices(speaker.list.voices);
	const megabytes = Math.ceil(await speaker.downloadBytes / 1e6);
	say(megabytes ? `Ready. The first speech downloads ${megabytes} MB, once.` : "Ready");
	$("speak").disabled = false;
}

// A site may be built without the voice. Controls that cannot work are not shown.
function showNoVoice() {
	$("workspace").hidden = true;
	$("no-voice").hidden = false;
}

$("speak").disabled = true;
$("speak").onclick = speak;
$("stop").onclick = stop;
$("settings").onsubmit = (event) => event.preventDefault();
$("theme").onclick = toggleTheme; // defined in theme.js
addEventListener("theme", () => playback.wave.readColours());
addEventListener("pointerup", unblock);
addEventListener("keydown", (event) => {
	unblock();
	if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !$("speak").disabled) speak();
	else if (event.key === "Escape") stop();
});
connectText({ changed: showCount, speak: () => { if (!$("speak").disabled) speak(); } });
$("text").oninput = showCount;
showCount();
window.vivaceTry = { speaker, playback, player }; // for the console and the benchmark
start().catch((error) => {
	showError("error", error.message);
	say("");
});
