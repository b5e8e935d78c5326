// Patterns and matches of Python's re; scripts/javascript/regex.py writes the sources.
function keep(target, name, value) {
	Object.defineProperty(target, name, { value });
	return value;
}

export class Pattern {
	constructor(source) {
		this.source = source;
	}

	// Expressions are compiled on first use. The flag "d" gives the places of groups.
	get searching() { return keep(this, "searching", new RegExp(this.source, "gu")); }
	get matching() { return keep(this, "matching", new RegExp(this.source, "yu")); }
	get matchingAll() { return keep(this, "matchingAll", new RegExp(`(?:${this.source})$`, "yu")); }

	find(expression, text, start = 0, end = text.length) {
		const own = end < text.length ? text.slice(0, end) : text;
		if (start > own.length) return null;
		expression.lastIndex = start;
		const found = expression.exec(own);
		return found && new Match(expression, found, own);
	}

	search(text, start, end) { return this.find(this.searching, text, start, end); }
	match(text, start, end) { return this.find(this.matching, text, start, end); }
	fullmatch(text, start, end) { return this.find(this.matchingAll, text, start, end); }

	*finditer(text, start = 0, end = text.length) {
		const own = text.slice(0, end);
		for (let at = start; at <= own.length;) {
			const found = this.search(own, at);
			if (!found) return;
			yield found;
			at = found.end() > found.start() ? found.end() : found.end() + 1;
		}
	}

	findall(text) {
		return Array.from(this.finditer(text), (match) => {
			const groups = match.groups("");
			return !groups.length ? match.group(0) : groups.length === 1 ? groups[0] : groups;
		});
	}

	sub(replacement, text, count = 0) {
		let out = "", place = 0, number = 0;
		for (const match of this.finditer(text)) {
			if (count && number === count) break;
			out += text.slice(place, match.start()) + (typeof replacement === "string" ? match.expand(replacement) : replacement(match));
			place = match.end();
			number += 1;
		}
		return out + text.slice(place);
	}

	split(text) {
		const parts = [];
		let place = 0;
		for (const match of this.finditer(text)) {
			parts.push(text.slice(place, match.start()), ...match.groups());
			place = match.end();
		}
		return [...parts, text.slice(place)];
	}
}

export class Match {
	constructor(expression, found, string) {
		this.expression = expression;
		this.found = found;
		this.string = string;
	}

	group(key = 0) { return (typeof key === "number" ? this.found[key] : this.found.groups[key]) ?? null; }
	groups(other = null) { return this.found.slice(1).map((group) => group ?? other); }
	start(key = 0) { return key === 0 ? this.found.index : this.place(key)[0]; }
	end(key = 0) { return key === 0 ? this.found.index + this.found[0].length : this.place(key)[1]; }
	span(key = 0) { return [this.start(key), this.end(key)]; }
	expand(template) { return template.replace(/\\(\d)/g, (_, number) => this.found[number] ?? ""); }

	place(key) {
		this.placed ??= this.findPlaces();
		return (typeof key === "number" ? this.placed[key] : this.placed.groups[key]) ?? [-1, -1];
	}

	findPlaces() {
		const expression = this.expression.placed ??= new RegExp(this.expression.source, `d${this.expression.flags}`);
		expression.lastIndex = this.found.index;
		return expression.exec(this.string).indices;
	}
}
