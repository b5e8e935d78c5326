// Runs before the first paint. The system's theme applies until the user chooses one.
const dark = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
try { chosenTheme = localStorage.getItem("vivace.theme"); } catch { /* storage may be forbidden */ }

function setTheme(theme) {
	document.documentElement.dataset.theme = theme ?? (dark.matches ? "dark" : "light");
	dispatchEvent(new Event("theme"));
}

function toggleTheme() {
	setTheme(chosenTheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark");
	try { localStorage.setItem("vivace.theme", chosenTheme); } catch { /* it lasts until a reload */ }
}

dark.addEventListener("change", () => setTheme(chosenTheme));
setTheme(chosenTheme);
