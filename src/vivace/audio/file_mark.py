"""The metadata that marks an audio file as AI-generated: tool, model and kind of voice."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import BinaryIO, Literal, Protocol, get_args

from vivace._version import __version__
from vivace.audio.tags import XMP, Tags, xmp_packet
from vivace.errors import AudioError

VoiceKind = Literal["preset", "fine-tuned", "cloned", "designed"]
VOICE_KINDS: tuple[VoiceKind, ...] = get_args(VoiceKind)
HEADER_STATEMENT = "ai-generated"
MAX_MODEL = 256  # characters of a model in a header
TOOL = "Vivace"
STATEMENT = "AI-generated speech"  # the first words of the comment
SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
_SEPARATORS = re.compile(r"[;\s]+")  # a value of the comment must not end its field


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The origin of speech. Files carry it as tags, HTTP responses as a header."""

    model: str  # a hub id, or the name of a local folder
    voices: tuple[VoiceKind, ...]
    is_watermarked: bool = False
    is_signed: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """How the speech is marked: metadata, watermark, c2pa."""
        others = (("watermark", self.is_watermarked), ("c2pa", self.is_signed))
        return ("metadata", *(name for name, is_on in others if is_on))

    @property
    def software(self) -> str:
        return f"{TOOL} {__version__}"

    @property
    def fields(self) -> dict[str, str]:
        """Names and values of the comment."""
        return {
            "tool": self.software,
            "model": _SEPARATORS.sub(" ", self.model).strip(),
            "voice": ", ".join(self.voices),
            "marks": ", ".join(self.marks),
            "digital source type": SOURCE_TYPE,
        }

    @property
    def comment(self) -> str:
        """`AI-generated speech; tool: …; model: …; voice: …; …`"""
        facts = (f"{name}: {value}" for name, value in self.fields.items())
        return "; ".join([STATEMENT, *facts])

    @property
    def header(self) -> str:
        """The comment as an ASCII header value. Values are percent-encoded where necessary."""
        from urllib.parse import quote  # only servers need it

        fields = {**self.fields, "digital source type": SOURCE_TYPE.rpartition("/")[2]}
        facts = (
            f"{name.replace(' ', '-')}={quote(value, safe=' /,+:@')}"
            for name, value in fields.items()
        )
        return "; ".join([HEADER_STATEMENT, *facts])

    @classmethod
    def parse_header(cls, header: str) -> Provenance:
        """Read `header` of speech that is written to another file. Raises AudioError.

        A signature belongs to one file, so it is left out.
        """
        from urllib.parse import unquote

        first, *facts = (part.strip() for part in header.split(";"))
        pairs = dict(fact.partition("=")[::2] for fact in facts)
        model, kinds = unquote(pairs.get("model", "")), pairs.get("voice", "").split(", ")
        voices = tuple(kind for kind in VOICE_KINDS if kind in kinds)
        if first != HEADER_STATEMENT or not model.isprintable() or not voices:
            raise AudioError(f"the provenance must be the header of a speech, not {header[:80]!r}")
        is_watermarked = "watermark" in pairs.get("marks", "").split(", ")
        return cls(model=model[:MAX_MODEL], voices=voices, is_watermarked=is_watermarked)

    @property
    def tags(self) -> Tags:
        return {
            "comment": self.comment,
            "software": self.software,
            XMP: xmp_packet(SOURCE_TYPE, self.software),
        }


class FileSigner(Protocol):
    """Adds a signed manifest to a complete file."""

    @property
    def formats(self) -> Collection[str]:
        """Names of the formats that can be signed."""

    def sign(self, source: BinaryIO, target: BinaryIO, format: str, title: str) -> None:
        """Copy the file from `source` to `target` with a manifest."""


@dataclass(frozen=True, slots=True)
class FileMark:
    """The statement of origin in an audio file: metadata, and a signed manifest if possible."""

    provenance: Provenance
    signer: FileSigner | None = None

    @property
    def tags(self) -> Tags:
        return self.provenance.tags

    def check_format(self, format: str) -> None:
        """Raise AudioError if the file is to be signed and has a format that cannot be."""
        if not self.can_sign(format):
            assert self.signer is not None
            raise AudioError(
                f"mark: c2pa cannot sign {format}; choose one of: {', '.join(self.signer.formats)}"
            )

    def can_sign(self, format: str) -> bool:
        """Whether the format allows what the mark demands."""
        return self.signer is None or format in self.signer.formats

    def unsigned(self) -> FileMark:
        """The same for audio that cannot be signed, such as a stream."""
        return FileMark(replace(self.provenance, is_signed=False))


def join_marks(marks: Iterable[FileMark | None]) -> FileMark | None:
    """The mark of a file that has several parts, with the kinds of all voices.

    None if a part is not marked.
    """
    every = list(marks)
    found = [mark for mark in every if mark is not None]
    if not found or len(found) < len(every):
        return None
    kinds = dict.fromkeys(kind for mark in found for kind in mark.provenance.voices)
    return replace(found[0], provenance=replace(found[0].provenance, voices=tuple(kinds)))
