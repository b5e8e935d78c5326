// Python's types and functions for text-rules.js, which scripts/javascript writes from the package's modules.
// str is a string, list and tuple are arrays, dict is a Map, set is a Set, None is null. Text is
// counted in UTF-16 units.
import { DICT, LIST, SET, STR } from "./python-methods.js";
import { Match, Pattern } from "./python-re.js";

export { Pattern };
export { unicodedata } from "./python-unicode.js";

const isPlain = (value) => value !== null && typeof value === "object" && Object.getPrototypeOf(value) === Object.prototype;
const methodsOf = (value) => (typeof value === "string" ? STR : Array.isArray(value) ? LIST
	: value instanceof Map ? DICT : value instanceof Set ? SET : null);

export function truth(value) {
	if (Array.isArray(value)) return value.length > 0;
	if (value instanceof Map || value instanceof Set) return value.size > 0;
	return value?.$bool ? value.$bool() : Boolean(value);
}

export function or(value, ...others) {
	for (const other of others) {
		if (truth(value)) return value;
		value = other();
	}
	return value;
}

export function and(value, ...others) {
	for (const other of others) {
		if (!truth(value)) return value;
		value = other();
	}
	return value;
}

// The values of an iterable: the keys of a Map, the characters of a string.
export const each = (value) => (value instanceof Map ? value.keys() : value);

// --- Objects ------------------------------------------------------------------------------------

export const instance = (kind, fields) => Object.assign(Object.create(kind.prototype), fields);
export const replace = (value, changes) => Object.assign(Object.create(Object.getPrototypeOf(value)), value, changes);
const isClass = (callee) => Object.getOwnPropertyDescriptor(callee, "prototype")?.writable === false;
export const invoke = (callee, ...given) => (isClass(callee) ? new callee(...given) : callee(...given));

export function call(name, target, ...given) {
	const method = methodsOf(target)?.[name];
	return method ? method(target, ...given) : target[name](...given);
}

export function bound(target, name) {
	const method = methodsOf(target)?.[name];
	if (method) return (...given) => method(target, ...given);
	return typeof target[name] === "function" ? target[name].bind(target) : target[name];
}

export function keep(target, name, value) {
	Object.defineProperty(target, name, { value });
	return value;
}

// --- Items --------------------------------------------------------------------------------------

export function item(container, key) {
	if (container instanceof Match) return container.group(key);
	if (container instanceof Map) {
		if (!container.has(key)) throw new Error(`KeyError: ${key}`);
		return container.get(key);
	}
	const found = container.at(key);
	if (found === undefined) throw new Error(`IndexError: ${key}`);
	return typeof container === "string" ? container.at(key) : found;
}

export function slice(container, start, end = null, step = 1) {
	const part = container.slice(start ?? 0, end ?? undefined);
	return step === 1 ? part : part.filter((_, n) => n % step === 0); // a list
}

export function setItem(container, key, value) {
	if (container instanceof Map) container.set(key, value);
	else container[key < 0 ? container.length + key : key] = value;
}

export function setSlice(list, start, end, values) {
	const first = (start ?? 0) < 0 ? Math.max(0, list.length + start) : start ?? 0;
	list.splice(first, slice(list, start, end).length, ...values);
}

// `a, *b, c = values`: the values with those of `b`, at `place` of `size` targets, in one list.
export function gather(values, place, size) {
	const all = [...each(values)], last = all.length - (size - 1 - place);
	return [...all.slice(0, place), all.slice(place, last), ...all.slice(last)];
}

export function contains(container, value) {
	if (typeof container === "string") return container.includes(value);
	if (Array.isArray(container)) return container.some((one) => equal(one, value));
	return container.has(value);
}

// --- Operators ----------------------------------------------------------------------------------

export function equal(one, other) {
	if (Array.isArray(one) && Array.isArray(other)) return one.length === other.length && one.every((each, n) => equal(each, other[n]));
	if (one instanceof Set && other instanceof Set) return one.size === other.size && [...one].every((each) => other.has(each));
	return one === other || (one ?? null) === (other ?? null);
}

// Sets: `>=` is "contains".
export function compare(one, sign, other) {
	if (one instanceof Set && sign === ">=") return [...other].every((each) => one.has(each));
	throw new Error(`sets are not compared by ${sign}`);
}

// Numbers above 2^53 are BigInt.
const asNumber = (value) => (Number.isSafeInteger(Number(value)) ? Number(value) : value);
const whole = (one, other, work) => asNumber(work(BigInt(one), BigInt(other)));
const isBig = (...values) => values.some((value) => typeof value === "bigint");

export const add = (one, other) => (Array.isArray(one) ? [...one, ...other] : one + other);
export const divide = (one, other) => Number(one) / Number(other);
export const modulo = (one, other) => (isBig(one, other) ? whole(one, other, (a, b) => a % b) : ((one % other) + other) % other);
export const floorDivide = (one, other) => (isBig(one, other) ? whole(one, other, (a, b) => a / b) : Math.floor(one / other));
export const power = (one, other) => whole(one, other, (a, b) => a ** b);
export const subtract = (one, other) => (one instanceof Set ? new Set([...one].filter((each) => !other.has(each))) : one - other);

export function multiply(one, other) {
	const [many, count] = typeof one === "string" || Array.isArray(one) ? [one, other] : [other, one];
	if (typeof many === "string") return many.repeat(Math.max(0, Number(count)));
	return Array.isArray(many) ? Array.from({ length: Math.max(0, count) }, () => many).flat() : one * other;
}

export function union(one, other) {
	if (one instanceof Map) return new Map([...one, ...other]);
	return one instanceof Set ? new Set([...one, ...other]) : one | other;
}

// `one += other` and `one |= other`, which change lists and sets in place.
export function extend(one, other) {
	if (!Array.isArray(one)) return one + other;
	for (const each of [...other]) one.push(each);
	return one;
}

export function include(one, other) {
	if (!(one instanceof Set)) return typeof one === "boolean" ? one || other : one | other;
	for (const each of other) one.add(each);
	return one;
}

// --- Functions ----------------------------------------------------------------------------------

export const len = (value) => value.length ?? value.size;
export const bool = truth;
export const str = Object.assign((value = "") => (value === null ? "None" : String(value)), STR);
export const repr = (value) => JSON.stringify(value);
// Format specifications such as "04X".
export const format = (value, written) => {
	const [, size, kind] = /^0?(\d+)([dX])$/.exec(written);
	return value.toString(kind === "X" ? 16 : 10).toUpperCase().padStart(size, "0");
};
export const int = (text) => {
	if (typeof text !== "string") return Math.trunc(Number(text));
	const digits = text.replaceAll("_", "").trim().normalize("NFKC");
	if (!/^[-+]?\d+$/.test(digits)) throw new Error(`ValueError: ${text}`);
	return asNumber(BigInt(digits.replace("+", "")));
};
export const float = Number;
export const list = (values = []) => [...each(values)];
export { list as tuple };
export const set = (values = []) => new Set(each(values));
export { set as frozenset };
export const any = (values) => list(values).some(truth);
export const all = (values) => list(values).every(truth);
export const map = (work, ...values) => (values.length === 1 ? list(values[0]).map((value) => work(value))
	: zip(...values).map((given) => work(...given)));
export const filter = (test, values) => list(values).filter(test ?? truth);
export const reversed = (values) => list(values).reverse();
export const enumerate = (values, start = 0) => list(values).map((value, n) => [n + start, value]);
export const sum = (values, start = 0) => list(values).reduce((total, value) => total + Number(value), start);
export const divmod = (one, other) => [floorDivide(one, other), modulo(one, other)];
export const ord = (character) => character.codePointAt(0);
export const isinstance = (value, kind) => (kind === str ? typeof value === "string" : value instanceof kind);

export function zip(...values) {
	const lists = values.filter((value) => !isPlain(value)).map(list);
	return lists[0].slice(0, Math.min(...lists.map(len))).map((_, n) => lists.map((one) => one[n]));
}

export function range(first, end = null, step = 1) {
	const start = end === null ? 0 : first, size = Math.max(0, Math.ceil(((end ?? first) - start) / step));
	return Array.from({ length: size }, (_, n) => start + n * step);
}

function extreme(given, isBetter) {
	const { key = (value) => value } = isPlain(given.at(-1)) ? given.pop() : {};
	const values = given.length === 1 ? list(given[0]) : given;
	return values.reduce((best, value) => (isBetter(key(value), key(best)) ? value : best));
}

export const max = (...given) => extreme(given, (one, other) => one > other);
export const min = (...given) => extreme(given, (one, other) => one < other);

export function sorted(values, { key = (value) => value, reverse = false } = {}) {
	const order = (one, other) => (key(one) < key(other) ? -1 : key(one) > key(other) ? 1 : 0);
	const found = list(values).sort(order);
	return reverse ? found.reverse() : found;
}

export function next(values, ...rest) {
	const { done, value } = each(values)[Symbol.iterator]().next();
	if (done && !rest.length) throw new Error("StopIteration");
	return done ? rest[0] : value;
}

// `iter(values)`, or `iter(work, end)`, which calls `work` until it returns `end`.
export const iter = (values, ...end) => (end.length ? until(values, end[0]) : each(values)[Symbol.iterator]());

function* until(work, end) {
	for (let value = work(); value !== end; value = work()) yield value;
}

// Of urllib.parse; a text that is not UTF-8 stays.
export function unquote(text) {
	try { return decodeURIComponent(text); } catch { return text; }
}
