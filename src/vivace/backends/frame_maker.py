"""Reference implementation of a frame, always computed with the same number of rows.

Faster backends are tested against its codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from vivace.backends.host import HostSlot
from vivace.backends.slots import banned_codes
from vivace.model.cache import NO_PLACE, KeyValueCache, RaggedCaches, WatchedCache
from vivace.model.config import Head
from vivace.model.lora import adapted, one_adapter
from vivace.model.row import RowStack
from vivace.model.talker import Qwen3TTS, Talker
from vivace.sampling import NoiseTable, Shape, draw, shape_scores, talker_scores
from vivace.speech import SamplingParams


@dataclass(slots=True, kw_only=True, eq=False)
class EagerSlot(HostSlot):
    cache: KeyValueCache
    hidden: Tensor  # [1, 1, hidden], after the last row read
    history: Tensor  # bool [1, vocabulary], codes of codebook 0 so far
    texts: list[Tensor]  # unread text embeddings, one per frame: [1, 1, hidden]
    head: Head | None = None  # watched attention head
    code_sum: Tensor | None = None  # the last frame's embeddings, not yet read by the talker
    codes: list[Tensor] = field(default_factory=list)  # made in the current step
    place: tuple[int, float] = NO_PLACE  # of the next frame
    places: list[tuple[int, float]] = field(default_factory=list)  # of the current step

    @property
    def attend(self) -> KeyValueCache | WatchedCache:
        """The cache, wrapped if an attention head is watched."""
        if self.head is None:
            return self.cache
        own_rows = range(self.own_row, self.own_row + self.num_own)
        return WatchedCache(self.cache, self.head, own_rows)

    def can_continue(self) -> bool:
        """Whether the next frame can be made. Sets the status to `running` or `waiting`.

        A frame needs a text id, unless the text is complete or the slot was just prefilled.
        """
        if not self.is_over:
            is_known = self.code_sum is None or bool(self.texts) or self.is_complete
            self.status = "running" if is_known else "waiting"
        return self.status == "running"


@dataclass(frozen=True, slots=True)
class FrameCodes:
    """The codes drawn for one frame of every row."""

    codes: Tensor  # int64 [B, groups]
    code_sum: Tensor  # [B, hidden], of the codes' embeddings
    is_finite: Tensor  # bool or int8 [B]


@dataclass(frozen=True, slots=True)
class FrameSampling:
    """Sampling parameters of the rows of a batch."""

    talker: Shape
    predictor: Shape
    penalty: Tensor  # [B, 1]

    def zero_greedy_noise(self, noise: Sequence[Tensor]) -> list[Tensor]:
        """Set the noise of greedy rows to 0: [B, frames, codes] of each codebook."""
        first, *rest = noise
        others = (self.predictor.zero_greedy_noise(part) for part in rest)
        return [self.talker.zero_greedy_noise(first), *others]


class FrameMaker:
    """Runs talker and predictor for up to `num_rows` slots; missing rows are padding."""

    def __init__(self, model: Qwen3TTS, num_rows: int) -> None:
        config = model.config.talker_config
        self._talker, self._predictor = model.talker, model.talker.code_predictor
        self._config, self._device = config, model.device
        self._num_rows = num_rows
        self._eos = config.codec_eos_token_id
        num_layers = config.code_predictor_config.num_hidden_layers
        self._predictor_cache = KeyValueCache(num_layers, config.num_code_groups)
        self._noise = noise_table(model)
        self._ban, self._early_ban = (ban[None] for ban in bans(model))  # [1, vocabulary]
        is_plain = model.dtype == torch.float32 and not model.is_quantized
        is_short = num_rows == 1 and model.device.type == "cpu" and is_plain
        self._row_talker = RowStack(self._talker) if is_short else None
        self._row_predictor = RowStack(self._predictor) if is_short else None
        pad = torch.tensor([[model.config.tts_pad_token_id]], device=model.device)
        self._pad_vectors = [  # of each adapter: [1, 1, hidden]
            model.talker.text_vectors(pad, one_adapter(number, model.device))
            for number in range(1 + model.num_adapters)
        ]

    def run(self, states: Sequence[EagerSlot], num_frames: int) -> None:
        """Make up to `num_frames` frames for each of at most `num_rows` slots."""
        first = [state.num_frames for state in states]
        sampling, noise = self._prepare(states, num_frames)
        for frame in range(num_frames):
            # A slot that waited in an earlier frame gets text only before the next step.
            ready = [
                i
                for i, state in enumerate(states)
                if state.can_continue() and state.num_frames == first[i] + frame
            ]
            if not ready:
                return
            self._make_frame(states, ready, sampling, [part[:, frame] for part in noise])

    def _prepare(
        self, states: Sequence[EagerSlot], num_frames: int
    ) -> tuple[FrameSampling, list[Tensor]]:
        """Sampling parameters, and the noise of each codebook: [rows, frames, codes]."""
        config, device = self._config, self._device
        missing = self._num_rows - len(states)
        params = [state.sampling for state in states] + [SamplingParams(seed=0)] * missing
        talker = [(p.temperature, p.top_k, p.top_p) for p in params]
        predictor = [(p.residual_temperature, p.predictor_top_k, p.predictor_top_p) for p in params]
        penalties = torch.tensor([p.repetition_penalty for p in params], dtype=torch.float32)
        sampling = FrameSampling(
            Shape.of(talker, config.vocab_size, device),
            Shape.of(predictor, config.code_predictor_config.vocab_size, device),
            penalties[:, None].to(device),
        )
        seeds = torch.tensor([p.seed for p in params], device=device)
        first = [state.num_frames for state in states] + [0] * missing
        noise = self._noise.frames(seeds, torch.tensor(first, device=device), num_frames)
        return sampling, sampling.zero_greedy_noise(noise)

    def _make_frame(
        self,
        states: Sequence[EagerSlot],
        ready: Sequence[int],
        sampling: FrameSampling,
        noise: Sequence[Tensor],  # of each codebook: [rows, codes]
    ) -> None:
        self._read_rows([states[i] for i in ready if states[i].code_sum is not None])
        self._predictor_cache.clear()
        adapters = self._adapters(states)
        made = draw_frame(
            self._talker,
            partial(self._predict, adapters=adapters, first=states[0].adapter),
            self._stack([state.hidden for state in states]),
            sampling,
            noise,
            history=self._stack([state.history for state in states]),
            is_banned=self._stack([self._banned(state) for state in states]),
            adapters=adapters,
        )
        is_finite, first_codes = made.is_finite.tolist(), made.codes[:, 0].tolist()
        for i in ready:
            if not is_finite[i]:
                states[i].status = "failed"
            elif first_codes[i] == self._eos:
                states[i].status = "stop"
            else:
                _keep(states[i], first_codes[i], made.codes[i], made.code_sum[None, i : i + 1])

    def _read_rows(self, states: Sequence[EagerSlot]) -> None:
        """Run the talker on the last frame's embeddings plus the next text embedding."""
        if not states:
            return
        rows = [
            state.code_sum
            + (state.texts.pop(0) if state.texts else self._pad_vectors[state.adapter])
            for state in states
            if state.code_sum is not None
        ]
        if self._row_talker is not None:
            [only], attend = states, states[0].attend
            x = self._row_talker(rows[0].view(-1), only.cache.length, attend, only.adapter)
            only.hidden, only.code_sum = x.view(1, 1, -1), None
            only.place = _place(attend)
            return
        positions = [state.cache.length for state in states]
        x = self._stack(rows)
        rope = self._talker.rope.rows(positions + [0] * (self._num_rows - len(rows)), x)
        attends = [state.attend for state in states]
        hidden = self._talker(x, rope, RaggedCaches(attends), self._adapters(states))
        for row, (state, attend) in enumerate(zip(states, attends, strict=True)):
            state.hidden = hidden[row : row + 1]
            state.code_sum, state.place = None, _place(attend)

    def _banned(self, state: EagerSlot) -> Tensor:
        """Special ids; before `min_frames` the end-of-speech id too."""
        is_early = state.num_frames < state.sampling.min_frames
        return self._early_ban if is_early else self._ban

    def _adapters(self, states: Sequence[EagerSlot]) -> Tensor | None:
        """The adapter of each row: [rows]. None if no row has one."""
        numbers = [state.adapter for state in states]
        if not any(numbers):
            return None
        padding = [0] * (self._num_rows - len(states))
        return torch.tensor([*numbers, *padding], device=self._device)

    def _predict(self, x: Tensor, *, adapters: Tensor | None, first: int) -> Tensor:
        """The hidden state of the last of these rows [rows, T, hidden]: [rows, hidden].

        `first` is the adapter of the first row.
        """
        cache = self._predictor_cache
        if self._row_predictor is not None and x.shape[1] == 1:
            return self._row_predictor(x.view(-1), cache.length, cache, first)[None]
        return self._predictor(x, cache.length, cache, adapters)[:, -1]

    def _stack(self, rows: Sequence[Tensor]) -> Tensor:
        """Concatenate rows of batch size 1, padded with zeros to `num_rows`."""
        if len(rows) == self._num_rows == 1:
            return rows[0]
        missing = self._num_rows - len(rows)
        return torch.cat([*rows, *[torch.zeros_like(rows[0])] * missing])


def draw_frame(
    talker: Talker,
    predict: Callable[[Tensor], Tensor],  # new rows [B, T, hidden] to the last one's [B, hidden]
    hidden: Tensor,  # [B, 1, hidden], of the talker
    sampling: FrameSampling,
    noise: Sequence[Tensor],  # of each codebook: [B, codes]
    *,
    history: Tensor,  # bool [B, codes], of codebook 0
    is_banned: Tensor,  # bool [B, codes], of codebook 0
    adapters: Tensor | None = None,  # int64 [B]; None: no row has an adapter
) -> FrameCodes:
    first, score = draw_first_codes(
        talker, hidden, sampling, noise[0], history, is_banned, adapters
    )
    return draw_residual_codes(
        talker, predict, hidden, first, score, sampling.predictor, noise[1:], adapters
    )


def draw_first_codes(
    talker: Talker,
    hidden: Tensor,
    sampling: FrameSampling,
    noise: Tensor,
    history: Tensor,
    is_banned: Tensor,
    adapters: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Codes of codebook 0 [B], and the score of each draw."""
    logits = adapted(talker.codec_head, hidden[:, 0], adapters).float()
    scores = talker_scores(logits, history, sampling.penalty, is_banned, sampling.talker)
    return draw(scores, noise)


def draw_residual_codes(
    talker: Talker,
    predict: Callable[[Tensor], Tensor],
    hidden: Tensor,
    first: Tensor,  # [B], codes of codebook 0
    score: Tensor,  # [B], of the draws of codebook 0
    shape: Shape,
    noise: Sequence[Tensor],  # of each codebook from 1 on: [B, codes]
    adapters: Tensor | None = None,
) -> FrameCodes:
    """Draw the other codebooks."""
    vectors = [talker.model.codec_embedding(first)[:, None]]
    codes, best = [first], [score]
    x = torch.cat((hidden, vectors[0]), dim=1)
    predictor = talker.code_predictor
    for table, head, part in zip(
        predictor.model.codec_embedding, predictor.lm_head, noise, strict=True
    ):
        logits = adapted(head, predict(x), adapters).float()
        code, score = draw(shape_scores(logits, shape), part)
        x = table(code)[:, None]
        vectors.append(x)
        codes.append(code)
        best.append(score)
    code_sum = torch.cat(vectors, dim=1).sum(1)
    is_finite = torch.isfinite(torch.stack(best, dim=-1)).all(dim=-1)
    return FrameCodes(torch.stack(codes, dim=-1), code_sum, is_finite)


def noise_table(model: Qwen3TTS) -> NoiseTable:
    config = model.config.talker_config
    size = config.code_predictor_config.vocab_size
    return NoiseTable([config.vocab_size] + [size] * (config.num_code_groups - 1), model.device)


def bans(model: Qwen3TTS) -> tuple[Tensor, Tensor]:
    """Masks of codebook 0: ids that are always banned, and ids banned before `min_frames`."""
    late, early = banned_codes(model.config.talker_config)
    return torch.from_numpy(late).to(model.device), torch.from_numpy(early).to(model.device)


def _place(attend: KeyValueCache | WatchedCache) -> tuple[int, float]:
    return attend.place if isinstance(attend, WatchedCache) else NO_PLACE


def _keep(state: EagerSlot, first: int, codes: Tensor, code_sum: Tensor) -> None:
    state.history[:, first] = True
    state.codes.append(codes)
    state.places.append(state.place)
    state.code_sum = code_sum
    state.num_frames += 1
    if state.num_frames >= state.max_frames:
        state.status = "length"
