// Short names for the document, messages beside controls, and the clipboard.
export const $ = (id) => document.getElementById(id);
export const make = (name, fields) => Object.assign(document.createElement(name), fields);
export const put = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };
export const say = (text) => put("status", text);

// Shows an error beside its control and scrolls to it. `more`: further nodes, such as a button.
export function showError(id, text, ...more) {
	$(id).replaceChildren(text, ...more);
	$(id).hidden = false;
	$(id).scrollIntoView({ block: "nearest" });
}

export function clearErrors() {
	for (const each of document.querySelectorAll(".error")) each.hidden = true;
}

// Copies `text`; the button shows it for a moment and the status announces it. False: the browser
// forbids the clipboard, as it does over plain HTTP from another machine.
export async function copyFrom(button, text, name) {
	try {
		await navigator.clipboard.writeText(text);
	} catch {
		return false;
	}
	const label = button.dataset.label ??= button.textContent;
	button.textContent = "Copied";
	setTimeout(() => { button.textContent = label; }, 2000);
	say(`${name} is copied.`);
	return true;
}

// Calls `take` with a file that is chosen in the input or dropped on the target.
export function takeFiles(input, target, take) {
	const mark = (isOver) => (event) => {
		if (!event.dataTransfer.types.includes("Files")) return; // dragged text is the browser's
		event.preventDefault();
		target.classList.toggle("over", isOver);
		if (event.type === "drop") take(event.dataTransfer.files[0]);
	};
	target.ondragover = mark(true);
	target.ondragleave = target.ondrop = mark(false);
	input.onchange = () => {
		if (input.files[0]) take(input.files[0]);
		input.value = ""; // the same file can be chosen again
	};
}
