"""Use the OpenAI client with `vivace serve`: a file, and audio that is played while it arrives.

    pip install '.[server]' openai
    vivace serve                                # in another terminal
    python examples/openai_client.py | aplay -q -t raw -f S16_LE -r 24000   # or ffplay

The first call writes hello.mp3. The second one writes raw samples to stdout. OPENAI_BASE_URL is the
address of the server, OPENAI_API_KEY its key.
"""

import os
import sys
import time

from openai import OpenAI

ADDRESS = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")


def main() -> None:
    client = OpenAI(base_url=ADDRESS, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    speech = client.audio.speech.create(
        model="tts-1",  # OpenAI's names select the server's default model and voices
        voice="alloy",
        input="Hello. This file was written by the OpenAI client.",
        response_format="mp3",
    )
    speech.write_to_file("hello.mp3")

    began = time.perf_counter()
    with client.audio.speech.with_streaming_response.create(
        model="tts-1",
        voice="alloy",
        input="And this sentence is played while it is still being spoken.",
        response_format="pcm",
    ) as response:
        for number, block in enumerate(response.iter_bytes(4_096)):
            if number == 0:
                elapsed_ms = 1000 * (time.perf_counter() - began)
                print(f"first audio after {elapsed_ms:.0f} ms", file=sys.stderr)
            sys.stdout.buffer.write(block)


if __name__ == "__main__":
    main()
