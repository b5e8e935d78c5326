// The current text and settings as a command and as a program, to be copied.
import { apiUrl, hasKey } from "./api.js";

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// A key is never copied: both versions read it from the environment.
export function toCurl(request) {
	const key = hasKey() ? ` -H "Authorization: Bearer $VIVACE_API_KEY" \\\n ` : "";
	return `curl ${apiUrl("audio/speech")} \\\n ${key} -H 'Content-Type: application/json' \\
  -d ${quote(JSON.stringify(request))} \\
  -o speech.${request.response_format}`;
}

// For OpenAI's client (`pip install openai`). Fields that it does not know go into `extra_body`.
export function toPython({ model, voice, input, instructions, response_format: format, speed, ...others }) {
	const known = { model, voice: voice ?? "default", instructions, speed, response_format: format, input };
	if (Object.values(others).some((value) => value !== undefined)) known.extra_body = others;
	const fields = Object.entries(known).filter(([, value]) => value !== undefined)
		.map(([name, value]) => `    ${name}=${JSON.stringify(value)},\n`).join("");
	return `${hasKey() ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url="${apiUrl("").replace(/\/$/, "")}", api_key=${hasKey() ? 'os.environ["VIVACE_API_KEY"]' : '"none"'})
with client.audio.speech.with_streaming_response.create(
${fields}) as response:
    response.stream_to_file("speech.${format}")`;
}
