// Draws the waveform on a musical stave: played audio in the accent colour, the rest in ink.
import { PEAK_S } from "./audio.js";

const BAR = 4, PITCH = 7, SHORTEST_S = 6, STAVE = 20, END = 16;

const colour = (name) => getComputedStyle(document.body).getPropertyValue(name);

const fit = (canvas) => {
	const { width, height } = canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
	const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
	if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
	const pen = canvas.getContext("2d");
	pen.setTransform(ratio, 0, 0, ratio, 0, 0);
	pen.clearRect(0, 0, width, height);
	return { pen, width, height };
};

// Speech is quiet most of the time; the square root makes small peaks visible.
const loudness = (peaks, from, to) => {
	let peak = 0;
	for (let i = Math.floor(from); i < Math.min(peaks.length, Math.max(to, from + 1)); i++) {
		peak = Math.max(peak, peaks[i]);
	}
	return Math.min(1, 1.15 * peak ** 0.7);
};

export class Wave {
	constructor(canvas, player) {
		Object.assign(this, { canvas, player, track: null, span: SHORTEST_S, shown: [], frame: 0 });
		this.isStill = matchMedia("(prefers-reduced-motion: reduce)");
		new ResizeObserver(() => this.draw()).observe(canvas);
	}

	readColours() {
		[this.played, this.unplayed, this.line] = ["--accent", "--ink", "--line"].map(colour);
		this.draw();
	}

	show(track) {
		if (track !== this.track) [this.track, this.shown] = [track, []];
		this.draw();
	}

	// Draws one frame and schedules the next while anything moves.
	draw() {
		this.frame ||= requestAnimationFrame(() => {
			this.frame = 0;
			if (this.paint()) this.draw();
		});
	}

	// The stave spans the window; the waveform spans the page's column.
	get column() {
		const own = this.canvas.getBoundingClientRect(), beside = this.canvas.parentElement.getBoundingClientRect();
		return { left: beside.left - own.left, width: beside.width - END };
	}

	paint() {
		const { pen, width, height } = fit(this.canvas), { left, width: wide } = this.column;
		if (!width) return false; // hidden
		const { track, player, shown } = this, ease = this.isStill.matches ? 1 : 0.22;
		const made = track?.seconds ?? 0, isEnded = track?.isEnded;
		const wanted = Math.max(SHORTEST_S, made * (isEnded ? 1 : 1.1));
		this.span += (wanted - this.span) * ease;
		const isHere = track && player.track === track;
		const at = isHere ? player.position : 0, isPlaying = isHere && player.isPlaying && !player.isPaused;
		const middle = Math.round(height / 2), x = (second) => left + (second / this.span) * wide;
		this.paintStave(pen, width, middle, x, left + wide);
		const count = Math.floor((wide + PITCH - BAR) / PITCH), perBar = this.span / count;
		let isMoving = Math.abs(wanted - this.span) > 0.01 || isPlaying || (track && !isEnded);
		for (let i = 0; i < count && i * perBar < made; i++) {
			const start = i * perBar, near = Math.abs(start + perBar / 2 - at) / perBar;
			let target = loudness(track.peaks, start / PEAK_S, (start + perBar) / PEAK_S);
			if (isPlaying && near < 4) target *= 1.16 - 0.04 * near; // bars near the playback position are enlarged
			const step = (target - (shown[i] ?? 0)) * ease;
			shown[i] = (shown[i] ?? 0) + step;
			isMoving ||= Math.abs(step) > 0.002;
			const size = Math.max(BAR, Math.min(1, shown[i]) * (height - BAR));
			pen.fillStyle = start < at ? this.played : this.unplayed;
			pen.beginPath();
			pen.roundRect(left + (i * (wide - BAR)) / (count - 1), middle - size / 2, BAR, size, BAR / 2);
			pen.fill();
		}
		if (isEnded && made) {
			pen.fillStyle = this.unplayed;
			const end = x(made) + END / 2;
			pen.fillRect(end, middle - 2 * STAVE, 1, 4 * STAVE + 1);
			pen.fillRect(end + 4, middle - 2 * STAVE, 4, 4 * STAVE + 1);
		}
		return isMoving;
	}

	paintStave(pen, width, middle, x, right) {
		pen.fillStyle = this.line;
		for (let line = -2; line <= 2; line++) pen.fillRect(0, middle + line * STAVE, width, 1);
		const step = [1, 2, 5, 10, 30, 60, 300, 1800].find((each) => x(each) - x(0) > 70) ?? 7200;
		for (let second = step; x(second) < right - 12; second += step) {
			pen.fillRect(Math.round(x(second)), middle - 2 * STAVE, 1, 4 * STAVE);
		}
	}

	// Converts a horizontal position to seconds of the track.
	secondAt(x) {
		const { left, width } = this.column, own = this.canvas.getBoundingClientRect();
		return Math.max(0, Math.min(this.track?.seconds ?? 0, ((x - own.left - left) / width) * this.span));
	}
}

// A static waveform of a whole track, for the history and the recording.
export function drawStill(canvas, track, name) {
	const { pen, width, height } = fit(canvas), pitch = 4;
	const count = Math.floor(width / pitch), perBar = track.peaks.length / count;
	pen.fillStyle = colour(name);
	for (let i = 0; i < count; i++) {
		const size = Math.max(2, loudness(track.peaks, i * perBar, (i + 1) * perBar) * height);
		pen.fillRect(i * pitch, (height - size) / 2, 2, size);
	}
}
