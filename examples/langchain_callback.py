"""Speak the reply of a LangChain model while the model writes it.

    pip install . langchain-core
    python examples/langchain_callback.py     # with LangChain's fake model

`stream` is spoken while the model writes, `invoke` when the reply is complete. Blocks without text,
such as tool calls and images, are not spoken.
"""

from typing import Any

from callback import Speaker
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel

from vivace import TTS


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or a list of strings and blocks."""
    if isinstance(content, dict):
        return content.get("text") or "" if content.get("type", "text") == "text" else ""
    return content if isinstance(content, str) else "".join(map(text_of, content or ()))


class SpeakingHandler(BaseCallbackHandler):
    """A callback handler that passes all tokens to a `Speaker`."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker, self._has_tokens = speaker, False

    def on_llm_new_token(self, token: Any, **_: Any) -> None:
        self._has_tokens = True
        self._speaker(text_of(token))

    def on_llm_end(self, response: Any, **_: Any) -> None:
        if not self._has_tokens:
            generation = response.generations[0][0]
            message = getattr(generation, "message", None)
            self._speaker(text_of(generation.text if message is None else message.content))
        self._has_tokens = False
        self._speaker.finish()

    def on_llm_error(self, error: BaseException, **_: Any) -> None:
        self._has_tokens = False
        self._speaker.interrupt()
        self._speaker.finish()


if __name__ == "__main__":
    model = GenericFakeChatModel(messages=iter(["Hello there. I speak while I write."]))
    handler = SpeakingHandler(Speaker(TTS.load(), print))
    for part in model.stream("Hi.", config={"callbacks": [handler]}):
        print(part.content)
