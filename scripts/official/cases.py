"""The calls of the official package for golden values: every mode, layout and model, greedy.

Plain data without torch. A call has one item, or several for a left-padded batch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

DEFAULT_SETTINGS: dict[str, Any] = {
    "do_sample": False,
    "subtalker_dosample": False,
    "max_new_tokens": 65,  # the last token is never completed, so 64 frames
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    text: str
    language: str = "english"
    speaker: str | None = None
    instruct: str | None = None
    reference: str | None = None  # a key of REFERENCES
    x_vector_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    name: str
    items: tuple[Item, ...]
    non_streaming_mode: bool
    settings: dict[str, Any] = field(default_factory=dict)  # besides DEFAULT_SETTINGS
    keeps_rows: bool = False  # also store the prefill rows and what follows from them
    keeps_waveform: bool = False

    def to_json(self) -> dict[str, Any]:
        items = [{k: v for k, v in asdict(item).items() if v is not None} for item in self.items]
        return {
            "name": self.name,
            "non_streaming_mode": self.non_streaming_mode,
            "settings": DEFAULT_SETTINGS | self.settings,
            "items": items,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A recording to clone: a synthetic wave of this length and what is said in it."""

    seconds: float
    text: str


REFERENCES = {
    "long": Reference(seconds=3.3, text="A long reference."),
    "short": Reference(seconds=0.61, text="Short."),
    "eight": Reference(seconds=0.6, text="Ab."),  # 8 frames, so 9 rows; with "Hello" 9 text rows
}

LANGUAGE_TEXTS = {
    "chinese": "你好，世界。今天天气很好。",
    "english": "Hello, this is the first sentence.",
    "german": "Guten Tag, wie geht's Ihnen?",
    "italian": "Buongiorno, come stai?",
    "portuguese": "Olá, tudo bem contigo?",
    "spanish": "Buenos días, ¿qué tal?",
    "japanese": "こんにちは、世界。",
    "korean": "안녕하세요, 세계.",
    "french": "Bonjour, ça va bien?",
    "russian": "Привет, русский мир.",
}
LONG_TEXT = (
    "It was a bright cold day in the spring, and the clocks were striking thirteen; "
    "the rest of the text is still being read when the last frame has been made."
)
LAYOUTS = {"streaming": False, "offline": True}  # name: non_streaming_mode


def one(name: str, item: Item, layout: str, **options: Any) -> Call:
    return Call(
        name=f"{name}_{layout}", items=(item,), non_streaming_mode=LAYOUTS[layout], **options
    )


def in_both_layouts(name: str, item: Item, **options: Any) -> list[Call]:
    return [one(name, item, layout, **options) for layout in LAYOUTS]


def custom_voice_calls() -> list[Call]:
    """The 0.6B kind: it ignores instructions."""
    calls = [
        one(language, Item(text=text, language=language, speaker="vivian"), "streaming")
        for language, text in LANGUAGE_TEXTS.items()
    ]
    calls += in_both_layouts(
        "plain", Item(text="Good morning.", speaker="Ryan"), keeps_rows=True, keeps_waveform=True
    )
    calls += in_both_layouts(
        "auto", Item(text="One, two, three.", language="Auto", speaker="serena")
    )
    calls.append(
        one("chinese", Item(text="你好世界", language="chinese", speaker="uncle_fu"), "offline")
    )
    for speaker in ("eric", "dylan"):
        for language in ("auto", "chinese", "english"):
            item = Item(text=f"好 {speaker}.", language=language, speaker=speaker)
            calls += in_both_layouts(f"{speaker}_{language}", item)
    calls += in_both_layouts("no_speaker", Item(text="Who is it?"), keeps_rows=True)
    calls += in_both_layouts("no_speaker_auto", Item(text="No one.", language="auto"))
    calls += in_both_layouts("empty_text", Item(text="", speaker="uncle_fu"))
    calls += in_both_layouts("one_token", Item(text="a", speaker="sohee"))
    calls += in_both_layouts("long_text", Item(text=LONG_TEXT, speaker="ono_anna"))
    calls += [
        one("instruct_ignored", Item(text="Calm.", speaker="ryan", instruct="Shout!"), "offline"),
        one("two_tokens", Item(text="Brief.", speaker="ryan"), "streaming",
            settings={"max_new_tokens": 2}),
        one("penalty_off", Item(text="Again and again.", speaker="ryan"), "streaming",
            settings={"repetition_penalty": 1.0}),
        one("penalty_strong", Item(text="Again and again.", speaker="ryan"), "streaming",
            settings={"repetition_penalty": 1.5}),
        one("many_frames", Item(text="Still going.", speaker="ryan"), "offline",
            settings={"max_new_tokens": 301}),
    ]  # fmt: skip
    return calls + custom_voice_batches(instruct=None)


def custom_voice_projected_calls() -> list[Call]:
    """The 1.7B kind: instructions are read, codes pass a projection."""
    plain = Item(text="Good evening.", speaker="vivian")
    auto = Item(text="你好世界", language="auto", speaker="eric", instruct="四川话")
    calls = in_both_layouts("plain", plain, keeps_waveform=True)
    calls += in_both_layouts(
        "instruct", Item(text="Good evening.", speaker="vivian", instruct="Very softly."),
        keeps_rows=True,
    )  # fmt: skip
    calls += in_both_layouts("instruct_dialect_auto", auto)
    calls += in_both_layouts(
        "instruct_no_speaker", Item(text="Guten Tag.", language="german", instruct="Old man.")
    )
    calls += in_both_layouts("dylan_chinese", Item(text="好", language="chinese", speaker="dylan"))
    return calls + custom_voice_batches(instruct="Like a whisper.")


def custom_voice_batches(instruct: str | None) -> list[Call]:
    items = (
        Item(text="The first of the three.", speaker="vivian"),
        Item(text="好", language="auto", speaker="eric", instruct=instruct),
        Item(text="A somewhat longer third one, no speaker.", language="auto"),
        Item(text="Привет.", language="russian", speaker="dylan", instruct=instruct),
    )
    return [
        Call(name=f"batch_{layout}", items=items, non_streaming_mode=mode)
        for layout, mode in LAYOUTS.items()
    ]


def voice_design_calls() -> list[Call]:
    design = "A warm, low voice."
    calls = in_both_layouts(
        "plain", Item(text="Design me a voice.", instruct=design),
        keeps_rows=True, keeps_waveform=True,
    )  # fmt: skip
    calls += in_both_layouts("auto", Item(text="Any.", language="auto", instruct=design))
    calls += in_both_layouts("no_instruct", Item(text="No words for it.", language="french"))
    items = (
        Item(text="The first.", instruct=design),
        Item(text="Second, in any language.", language="auto", instruct="Robot."),
        Item(text="세 번째", language="korean"),
    )
    return calls + [
        Call(name=f"batch_{layout}", items=items, non_streaming_mode=mode)
        for layout, mode in LAYOUTS.items()
    ]


def base_calls() -> list[Call]:
    """X-vector alone, then in-context cloning on either side of T1 > T2."""
    long_x: dict[str, Any] = {"reference": "long", "x_vector_only": True}
    calls = in_both_layouts(
        "x_vector", Item(text="Who am I now?", **long_x), keeps_rows=True, keeps_waveform=True
    )
    calls += in_both_layouts("x_vector_auto", Item(text="¿Quién?", language="auto", **long_x))
    calls += in_both_layouts(
        "icl_text_longer",
        Item(text="This text has more tokens than the frames.", reference="short"),
        keeps_rows=True,
    )
    calls += in_both_layouts(
        "icl_reference_longer", Item(text="Few words.", reference="long"),
        keeps_rows=True, keeps_waveform=True,
    )  # fmt: skip
    calls += in_both_layouts("icl_same_length", Item(text="Hello", reference="eight"))
    calls += in_both_layouts(
        "icl_auto", Item(text="In any language.", language="auto", reference="short")
    )
    items = (
        Item(text="Only the vector.", **long_x),
        Item(text="In context, short one.", language="auto", reference="short"),
        Item(text="Long.", language="spanish", reference="long"),
    )
    return calls + [
        Call(name=f"batch_{layout}", items=items, non_streaming_mode=mode)
        for layout, mode in LAYOUTS.items()
    ]


CALLS = {
    "custom_voice": custom_voice_calls(),
    "custom_voice_projected": custom_voice_projected_calls(),
    "voice_design": voice_design_calls(),
    "base": base_calls(),
    "base_projected": base_calls(),
}

TOKENIZER_TEXTS = [
    *LANGUAGE_TEXTS.values(),
    LONG_TEXT,
    "", " ", "  two  spaces ", "tab\there", "line\nbreak", "two\n\nbreaks", "win\r\ndows",
    "don't, it's, we'll, I'VE", "1234.5 + 6 = 12", "OpenAI's iPhone", "Wait... what?!!",
    "the thing, the\u00a0end", "e\u0301 and é", "👍🏽 ok", "ﬁ ﬂ Å", "مرحبا हिन्दी", "user assistant",
]  # fmt: skip
# Here the template's own newline and the text meet, and the ids of the role may change.
TEMPLATE_TEXTS = ["Hello", "\nHello", "\n\nHello", " Hello", "Hello\n", "", "\n", "the"]
