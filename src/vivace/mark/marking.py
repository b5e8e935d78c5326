"""`Marking`: loaded marks, applied to the samples and files of one speech after another."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vivace.audio.file_mark import FileMark, FileSigner, Provenance, VoiceKind
from vivace.mark.levels import DEFAULT_MARK, MarkLevels

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class SampleMarker(Protocol):
    """Adds a watermark to the samples of one speech. Gives as many samples as it takes."""

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """The samples that are ready. Others are held back until later samples are known."""

    def finish(self) -> NDArray[np.float32]:
        """The samples that were held back."""


class SampleWatermark(Protocol):
    """A loaded watermark."""

    def stream(self, rate: int) -> SampleMarker: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Marking:
    """Which marks speech gets, with what they need. `load` creates it."""

    has_metadata: bool = True
    watermark: SampleWatermark | None = None
    signer: FileSigner | None = None

    @classmethod
    def load(
        cls,
        levels: str | Collection[str] | MarkLevels = DEFAULT_MARK,
        *,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        timestamp_url: str | None = None,
    ) -> Marking:
        """Load the models and keys that the levels need.

        Args:
            levels: `metadata`, `watermark`, `c2pa`, `watermark,c2pa` or `none`.
            certificate: PEM file with the signing certificate, then its chain, for `c2pa`. None:
                the variable VIVACE_C2PA_CERT.
            key: PEM file with the private key. None: the variable VIVACE_C2PA_KEY.
            timestamp_url: Timestamp authority. None: the variable VIVACE_C2PA_TIMESTAMP_URL, or no
                timestamps, which need a network connection.
        """
        wanted = levels if isinstance(levels, MarkLevels) else MarkLevels.parse(levels)
        return cls(
            has_metadata=wanted.metadata,
            watermark=_load_watermark() if wanted.watermark else None,
            signer=_load_signer(certificate, key, timestamp_url) if wanted.c2pa else None,
        )

    @property
    def levels(self) -> MarkLevels:
        return MarkLevels(
            metadata=self.has_metadata,
            watermark=self.watermark is not None,
            c2pa=self.signer is not None,
        )

    def file_mark(self, model: str, *voices: VoiceKind) -> FileMark | None:
        """The mark of files with speech of this model and these kinds of voices; None: no mark."""
        if not self.has_metadata:
            return None
        provenance = Provenance(
            model=model,
            voices=tuple(dict.fromkeys(voices)),
            is_watermarked=self.watermark is not None,
            is_signed=self.signer is not None,
        )
        return FileMark(provenance, self.signer)

    def open_stream(self, sample_rate: int) -> SampleMarker | None:
        """Marks the samples of one speech, if there is a watermark."""
        return None if self.watermark is None else self.watermark.stream(sample_rate)

    def without_watermark(self) -> Marking:
        """The same for speech that is watermarked later, or was before."""
        return replace(self, watermark=None)


MarkSource = str | Collection[str] | Marking
NO_MARKING = Marking(has_metadata=False)


def _load_watermark() -> SampleWatermark:
    from vivace.mark.watermark import Watermark  # imports torch

    return Watermark.load()


def _load_signer(
    certificate: str | Path | None, key: str | Path | None, timestamp_url: str | None
) -> FileSigner:
    from vivace.mark.c2pa import ManifestSigner  # loads a library of 30 MB

    return ManifestSigner.load(certificate, key, timestamp_url)
