"""Speaks with an exported folder in onnxruntime, as a program in another language would.

The reference for such programs, and the subject of the tests of the graphs. The package itself does
not use it to speak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from vivace.checkpoint_files import read_json
from vivace.errors import CheckpointError, NumericError, RequestError, UnknownVoiceError
from vivace.export.manifest import FORMAT, FORMAT_VERSION, file_facts
from vivace.export.write import MANIFEST
from vivace.sampling import NoiseTable
from vivace.speech import AUTO_LANGUAGE, SamplingParams

ALL_CODES = 2**31 - 1  # as `top_k`
Codes = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(slots=True)
class CodecStream:
    """The state of a stream of samples."""

    state: Floats
    num_frames: int = 0


@dataclass(slots=True)
class _Utterance:
    """The inputs of the frame graph that change from frame to frame."""

    text_ids: list[int]
    codes: Codes  # [rows, codebooks]
    trailing: list[int]  # text ids of the next frames, before the pad id
    past: Floats
    history: NDArray[np.bool_]
    num_frames: int = 0
    feeds: dict[str, Any] = field(default_factory=dict)  # constant ones


class OnnxVoice:
    """The two graphs of an exported folder."""

    def __init__(self, folder: Path, *, num_threads: int = 0) -> None:
        """`num_threads` 0 uses all cores. Raises CheckpointError for a damaged folder."""
        self.manifest = read_json(folder / MANIFEST)
        found = self.manifest.get("format"), self.manifest.get("format_version")
        if found != (FORMAT, FORMAT_VERSION):
            raise CheckpointError(f"{folder / MANIFEST}: the format is {found[0]!r} {found[1]!r}")
        for name, facts in self.manifest["files"].items():
            if not (folder / name).is_file() or file_facts(folder / name) != facts:
                raise CheckpointError(f"{folder / name} is missing or damaged; export again")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        self._frame, self._codec = (
            onnxruntime.InferenceSession(folder / name, options, ["CPUExecutionProvider"])
            for name in ("frame.onnx", "codec.onnx")
        )
        self._first_codes = np.array(self.manifest["first_codes"])
        # The first codes that can be drawn may have gaps: noise is made for all ids up to the last.
        others = [self.manifest["codebook_size"]] * (self.manifest["num_codebooks"] - 1)
        sizes = [int(self._first_codes.max()) + 1, *others]
        self._noise = NoiseTable(sizes, torch.device("cpu"))

    @property
    def sampling(self) -> SamplingParams:
        """The checkpoint's own defaults, without a seed."""
        return SamplingParams(**self.manifest["sampling"])

    def frames(
        self,
        text_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        voice: str = "",
        language: str = AUTO_LANGUAGE,
        speaker: Floats | None = None,  # vector of a Base checkpoint
        forced: NDArray[Any] | None = None,  # [frames, codebooks]
    ) -> Iterator[Codes]:
        """The codes of each frame until the end of speech or `max_frames`.

        With `forced`, one frame is drawn after each prefix of these codes, for comparisons.
        """
        if sampling.seed is None:
            raise RequestError("sampling.seed is None; choose a seed")
        utterance = self._begin(text_ids, voice, language)
        utterance.feeds = _sampling_feeds(sampling)
        if speaker is not None:
            utterance.feeds["speaker"] = speaker
        is_greedy = sampling.temperature == 0, sampling.residual_temperature == 0
        limit = min(sampling.max_frames, self.manifest["max_rows"] - len(utterance.text_ids))
        limit = limit if forced is None else len(forced)
        while utterance.num_frames < limit:
            noise = self._frame_noise(sampling.seed, utterance.num_frames, is_greedy)
            is_early = utterance.num_frames < sampling.min_frames
            codes = self._make_frame(utterance, noise, is_early)
            if forced is not None:
                utterance.codes = forced[utterance.num_frames - 1][None].astype(np.int32)
            elif codes[0] == self.manifest["end_code"]:
                return
            yield codes

    def new_stream(self) -> CodecStream:
        inputs = self.manifest["graphs"]["codec.onnx"]["inputs"]
        size = next(each["shape"] for each in inputs if each["name"] == "state")
        return CodecStream(np.zeros(size, np.float32))

    def decode(self, codes: NDArray[Any], stream: CodecStream) -> Floats:
        """Codes [frames, codebooks] to samples, continuing the stream."""
        if not len(codes):
            return np.empty(0, np.float32)
        feeds = {
            "codes": np.asarray(codes, np.int32),
            "num_frames": np.array([stream.num_frames], np.int32),
            "state": stream.state,
        }
        samples, stream.state = self._codec.run(["samples", "new_state"], feeds)
        stream.num_frames += len(codes)
        return np.asarray(samples)

    def _begin(self, text_ids: Sequence[int], voice: str, language: str) -> _Utterance:
        prompt = self.manifest["prompt"]
        if voice not in prompt["before_text"]:
            raise UnknownVoiceError(voice, list(prompt["before_text"]))
        rows = [tuple(row) for row in prompt["before_text"][voice][language]]
        trailing: list[int] = []
        if prompt["layout"] == "whole":
            rows += [(text_id, prompt["text_code"]) for text_id in (*text_ids, prompt["end_id"])]
            rows.append((prompt["pad_id"], prompt["speech_code"]))
        else:
            first, *trailing = [*text_ids, prompt["end_id"]]
            rows.append((first, prompt["speech_code"]))
        codes = np.full((len(rows), self.manifest["num_codebooks"]), prompt["no_code"], np.int32)
        codes[:, 0] = [code for _, code in rows]
        inputs = self.manifest["graphs"]["frame.onnx"]["inputs"]
        shape = next(each["shape"] for each in inputs if each["name"] == "past")
        past = np.empty((0, *shape[1:]), np.float32)
        history = np.zeros(len(self._first_codes), np.bool_)
        return _Utterance([text for text, _ in rows], codes, trailing, past, history)

    def _make_frame(self, utterance: _Utterance, noise: Floats, is_early: bool) -> Codes:
        feeds = {
            **utterance.feeds,
            "text_ids": np.array(utterance.text_ids, np.int32),
            "codes": utterance.codes,
            "past": utterance.past,
            "noise": noise,
            "history": utterance.history,
            "is_end_banned": np.array([is_early]),
        }
        codes, scores, new = self._frame.run(["next_codes", "scores", "new_past"], feeds)
        if not np.isfinite(scores).all():
            raise NumericError(f"frame {utterance.num_frames} has non-finite scores")
        utterance.past = np.concatenate([utterance.past, new])
        utterance.history |= self._first_codes == codes[0]
        trailing = utterance.trailing
        utterance.text_ids = [trailing.pop(0) if trailing else self.manifest["prompt"]["pad_id"]]
        utterance.codes = codes[None]
        utterance.num_frames += 1
        return np.asarray(codes)

    def _frame_noise(self, seed: int, frame: int, is_greedy: tuple[bool, bool]) -> Floats:
        noise = self._noise.frames(torch.tensor([seed]), torch.tensor([frame]), 1)
        first, *others = (part[0, 0].numpy() for part in noise)
        parts = [first[self._first_codes] * (not is_greedy[0])]
        parts += [part * (not is_greedy[1]) for part in others]
        return np.concatenate(parts).astype(np.float32)


def _sampling_feeds(sampling: SamplingParams) -> dict[str, Any]:
    floats = {
        "temperature": sampling.temperature or 1.0,
        "top_p": sampling.top_p,
        "repetition_penalty": sampling.repetition_penalty,
        "predictor_temperature": sampling.residual_temperature or 1.0,
        "predictor_top_p": sampling.predictor_top_p,
    }
    counts = {"top_k": sampling.top_k, "predictor_top_k": sampling.predictor_top_k}
    return {
        **{name: np.array([value], np.float32) for name, value in floats.items()},
        **{name: np.array([k or ALL_CODES], np.int32) for name, k in counts.items()},
    }
