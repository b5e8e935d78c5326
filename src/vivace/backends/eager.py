"""The reference backend: plain PyTorch, any device, no compilation.

A slot's codes do not depend on its company. Matrix products round differently for different
numbers of rows, so every pass has the same number: one on a CPU, where rows cost time, and
`PASS_ROWS` elsewhere, where they are free; empty rows are padding. Attention runs per slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vivace.backends.base import Frames, Samples, Slot, SlotStatus
from vivace.errors import BackendError
from vivace.model.cache import KeyValueCache, RaggedCaches
from vivace.model.codec import Codec
from vivace.model.config import SPEAKER
from vivace.model.conv import CausalState
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt
from vivace.sampling import NoiseTable, Shape, draw, shape_scores, talker_scores
from vivace.speech import SamplingParams

PASS_ROWS = 8


@dataclass(slots=True, eq=False)
class _SlotState:
    """One admitted prompt."""

    sampling: SamplingParams
    seed: int
    max_frames: int
    cache: KeyValueCache
    hidden: Tensor  # [1, 1, hidden], after the last row read
    history: Tensor  # bool [vocabulary], codes of codebook 0 so far
    texts: list[Tensor]  # vectors still to be fed, one per frame: [1, 1, hidden]
    is_complete: bool
    codec_state: CausalState
    num_frames: int = 0
    code_sum: Tensor | None = None  # the last frame's embeddings, not yet read by the talker
    status: SlotStatus = "running"
    codes: list[Tensor] = field(default_factory=list)  # of the step under way

    @property
    def can_read(self) -> bool:
        """Whether the next row is known: a fresh slot has read it, another needs its text."""
        return self.code_sum is None or bool(self.texts) or self.is_complete


class EagerBackend:
    name = "eager"

    def __init__(self, model: Qwen3TTS, codec: Codec, *, pass_rows: int | None = None) -> None:
        self.model = model
        self.codec = codec
        self._rows = pass_rows or (1 if model.device.type == "cpu" else PASS_ROWS)
        self._slots: dict[Slot, _SlotState] = {}
        self._next_slot = 0
        config = model.config.talker_config
        predictor = config.code_predictor_config
        sizes = [config.vocab_size] + [predictor.vocab_size] * (config.num_code_groups - 1)
        self._noise = NoiseTable(sizes, model.device)
        self._predictor_cache = KeyValueCache(
            predictor.num_hidden_layers, capacity=config.num_code_groups
        )
        self._ban, self._early_ban = _bans(
            config.vocab_size, config.codec_eos_token_id, model.device
        )
        self._pad_vector = self._text_vectors([model.config.tts_pad_token_id])[0]

    # -- the seam ----------------------------------------------------------------------------

    @torch.inference_mode()
    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        if sampling.seed is None:
            raise BackendError("a slot needs a seed; the front door draws one")
        config = self.model.config.talker_config
        room = config.max_position_embeddings - len(prompt)
        if room < 1:
            raise BackendError(
                f"the prompt has {len(prompt)} rows and the model reads at most "
                f"{config.max_position_embeddings - 1}"
            )
        cache = KeyValueCache(config.num_hidden_layers)
        slot = self._next_slot
        self._next_slot += 1
        self._slots[slot] = _SlotState(
            sampling=sampling,
            seed=sampling.seed,
            max_frames=min(sampling.max_frames, room),
            cache=cache,
            hidden=self._prefill(prompt, cache),
            history=torch.zeros(config.vocab_size, dtype=torch.bool, device=self.model.device),
            texts=self._text_vectors(prompt.trailing_ids),
            is_complete=prompt.is_complete,
            codec_state=self._warm_codec(prompt),
        )
        return slot

    @torch.inference_mode()
    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None:
        state = self._state(slot)
        if state.is_complete:
            raise BackendError("the slot's text is complete; nothing can be appended")
        ids = [*text_ids, self.model.config.tts_eos_token_id] if is_last else text_ids
        state.texts += self._text_vectors(ids)
        state.is_complete = is_last

    @torch.inference_mode()
    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        states = [self._state(slot) for slot in slots]
        for start in range(0, len(states), self._rows):
            self._run(states[start : start + self._rows], num_frames)
        frames = _gather(states, self.model.config.talker_config.num_code_groups)
        for state in states:
            state.codes = []
        return frames

    @torch.inference_mode()
    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        samples = []
        for row, slot in enumerate(slots):
            codes = torch.from_numpy(frames.of(row)).to(self.codec.device)
            samples.append(self.codec.decode(codes, self._state(slot).codec_state).cpu().numpy())
        return samples

    def release(self, slot: Slot) -> None:
        self._state(slot)
        del self._slots[slot]

    # -- reading the prompt ------------------------------------------------------------------

    def _state(self, slot: Slot) -> _SlotState:
        try:
            return self._slots[slot]
        except KeyError:
            raise BackendError(f"slot {slot} was released or never admitted") from None

    def _text_vectors(self, ids: Sequence[int]) -> list[Tensor]:
        if not ids:
            return []
        with torch.inference_mode():
            rows = torch.tensor(ids, device=self.model.device)
            return list(self.model.talker.text_vectors(rows)[:, None, None].unbind(0))

    def prompt_rows(self, prompt: Prompt) -> Tensor:
        """What the talker reads: [rows, hidden]."""
        talker = self.model.talker
        codes = torch.from_numpy(prompt.codes).to(self.model.device)
        rows = talker.code_vectors(codes)
        if prompt.speaker is not None:
            vector = torch.from_numpy(prompt.speaker).to(rows)
            rows = torch.where(codes[:, :1] == SPEAKER, vector, rows)
        return rows + talker.text_vectors(torch.tensor(prompt.text_ids, device=self.model.device))

    def _prefill(self, prompt: Prompt, cache: KeyValueCache) -> Tensor:
        talker = self.model.talker
        x = self.prompt_rows(prompt)[None]
        return talker(x, talker.rope.span(0, len(prompt), x), cache)[:, -1:]

    def _warm_codec(self, prompt: Prompt) -> CausalState:
        """A cloned voice's audio continues its reference's."""
        state = CausalState()
        if prompt.reference is not None:
            self.codec.decode(torch.from_numpy(prompt.reference).to(self.codec.device), state)
        return state

    # -- making frames -----------------------------------------------------------------------

    def _run(self, states: Sequence[_SlotState], num_frames: int) -> None:
        """Up to `num_frames` frames for at most one pass's worth of slots."""
        device = self.model.device
        seeds = torch.tensor(self._padded([s.seed for s in states]), device=device)
        first = torch.tensor(self._padded([s.num_frames for s in states]), device=device)
        noise = self._noise.frames(seeds, first, num_frames)
        pass_ = _Pass(self, states, noise)
        for frame in range(num_frames):
            live = [i for i, s in enumerate(states) if s.status in ("running", "waiting")]
            ready = [i for i in live if states[i].can_read]
            for i in live:
                states[i].status = "running" if states[i].can_read else "waiting"
            # A slot that waited is behind its noise: it goes on in the next step.
            ready = [i for i in ready if states[i].num_frames == pass_.first[i] + frame]
            if not ready:
                return
            pass_.make_frame(ready, frame)

    def _padded(self, values: list[int]) -> list[int]:
        return values + [0] * (self._rows - len(values))


class _Pass:
    """Frames of one group of slots, always computed with the same number of rows."""

    def __init__(
        self, backend: EagerBackend, states: Sequence[_SlotState], noise: list[Tensor]
    ) -> None:
        self.states = states
        self.first = [state.num_frames for state in states]
        self._rows = backend._rows
        self._talker = backend.model.talker
        self._predictor = backend.model.talker.code_predictor
        self._predictor_cache = backend._predictor_cache
        self._pad_vector = backend._pad_vector
        self._ban, self._early_ban = backend._ban, backend._early_ban
        self._eos = backend.model.config.talker_config.codec_eos_token_id
        device = backend.model.device
        params = [s.sampling for s in states]
        params += params[:1] * (self._rows - len(params))
        config = self._talker.config
        self._talker_shape = Shape.of(
            [(p.temperature, p.top_k, p.top_p) for p in params], config.vocab_size, device
        )
        self._predictor_shape = Shape.of(
            [(p.residual_temperature, p.predictor_top_k, p.predictor_top_p) for p in params],
            config.code_predictor_config.vocab_size,
            device,
        )
        first, *rest = noise
        self._first_noise = self._talker_shape.quieten(first)  # [rows, frames, codes]
        self._rest_noise = [self._predictor_shape.quieten(part) for part in rest]
        penalties = [p.repetition_penalty for p in params]
        self._penalty = torch.tensor(penalties, dtype=torch.float32, device=device)[:, None]

    def make_frame(self, ready: Sequence[int], frame: int) -> None:
        self._read_rows([i for i in ready if self.states[i].code_sum is not None])
        hidden = self._stack([state.hidden for state in self.states])  # [rows, 1, hidden]
        first, score = self._draw_first(hidden, frame)
        codes, code_sum, scores = self._draw_rest(hidden, first, score, frame)
        is_finite = torch.isfinite(scores).all(dim=-1).tolist()
        first_codes = first.tolist()
        for i in ready:
            self._keep(self.states[i], first_codes[i], is_finite[i], codes[i], code_sum[i : i + 1])

    def _keep(
        self, state: _SlotState, first: int, is_finite: bool, codes: Tensor, code_sum: Tensor
    ) -> None:
        if not is_finite:
            state.status = "failed"
            return
        if first == self._eos:
            state.status = "stop"
            return
        state.history[first] = True
        state.codes.append(codes)
        state.code_sum = code_sum
        state.num_frames += 1
        if state.num_frames >= state.max_frames:
            state.status = "length"

    def _read_rows(self, indices: Sequence[int]) -> None:
        """Feed the last frame and the next text to the talker."""
        if not indices:
            return
        states = [self.states[i] for i in indices]
        rows = [
            state.code_sum + (state.texts.pop(0) if state.texts else self._pad_vector)
            for state in states
            if state.code_sum is not None
        ]
        positions = [state.cache.length for state in states]
        x = self._stack(rows)
        rope = self._talker.rope.rows(positions + [0] * (self._rows - len(rows)), x)
        hidden = self._talker(x, rope, RaggedCaches([state.cache for state in states]))
        for row, state in enumerate(states):
            state.hidden = hidden[row : row + 1]
            state.code_sum = None

    def _draw_first(self, hidden: Tensor, frame: int) -> tuple[Tensor, Tensor]:
        logits = self._talker.codec_head(hidden[:, 0]).float()
        history = self._stack([state.history[None] for state in self.states])
        banned = self._stack([self._banned(state) for state in self.states])
        scores = talker_scores(logits, history, self._penalty, banned, self._talker_shape)
        return draw(scores, self._first_noise[:, frame])

    def _banned(self, state: _SlotState) -> Tensor:
        is_early = state.num_frames < state.sampling.min_frames
        return self._early_ban if is_early else self._ban  # [1, vocabulary]

    def _draw_rest(
        self, hidden: Tensor, first: Tensor, score: Tensor, frame: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All codes [rows, groups], the sum of their embeddings, and the score of each draw."""
        cache = self._predictor_cache
        cache.clear()
        vectors = [self._talker.model.codec_embedding(first)[:, None]]
        codes, best = [first], [score]
        x = torch.cat((hidden, vectors[0]), dim=1)
        groups = zip(
            self._predictor.model.codec_embedding,
            self._predictor.lm_head,
            self._rest_noise,
            strict=True,
        )
        for table, head, noise in groups:
            out = self._predictor(x, cache.length, cache)
            scores = shape_scores(head(out[:, -1]).float(), self._predictor_shape)
            code, score = draw(scores, noise[:, frame])
            x = table(code)[:, None]
            vectors.append(x)
            codes.append(code)
            best.append(score)
        code_sum = torch.cat(vectors, dim=1).sum(1, keepdim=True)
        return torch.stack(codes, dim=-1), code_sum, torch.stack(best, dim=-1)

    def _stack(self, rows: Sequence[Tensor]) -> Tensor:
        """Rows of leading size 1 in one batch, padded with zeros to the pass's size."""
        if len(rows) == self._rows == 1:
            return rows[0]
        missing = self._rows - len(rows)
        return torch.cat([*rows, *[torch.zeros_like(rows[0])] * missing])


def _bans(vocab_size: int, eos: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """What codebook 0 never draws: the last 1024 ids but the end of speech, and early that too."""
    early = torch.arange(vocab_size, device=device)[None] >= vocab_size - 1024
    later = early.clone()
    later[:, eos] = False
    return later, early


def _gather(states: Sequence[_SlotState], num_groups: int) -> Frames:
    lengths = tuple(len(state.codes) for state in states)
    codes = np.zeros((len(states), max(lengths, default=0), num_groups), dtype=np.int64)
    for row, state in enumerate(states):
        if state.codes:
            codes[row, : lengths[row]] = torch.stack(state.codes).cpu().numpy()
    return Frames(codes, lengths, tuple(state.status for state in states))
