"""Speak dev sentences in one batch without a KV cache: every step is a whole pass."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from recipes.mini_voice.common import DEVICE, Log, load_half
from recipes.mini_voice.encode import Codes
from recipes.mini_voice.lines import SPEAKER, all_lines
from recipes.mini_voice.rows import Ids, prompt_rows
from recipes.mini_voice.settings import FRAME, decoder_config
from recipes.mini_voice.talker_files import embed
from vivace.model.cache import attend_causally
from vivace.model.codec_decoder import CodecDecoder
from vivace.model.config import NO_CODE
from vivace.model.conv import CausalState
from vivace.model.talker import Talker
from vivace.text.tokenizer import TextTokenizer


def draw(logits: Tensor, temperature: float, top_k: int) -> Tensor:
    """One id of each row [B, vocabulary]; temperature 0 takes the best."""
    if temperature == 0:
        return logits.argmax(-1)
    scores = logits.float() / temperature
    scores = scores.masked_fill(scores < scores.topk(top_k).values[:, -1:], -torch.inf)
    return torch.multinomial(scores.softmax(-1), 1)[:, 0]


@torch.no_grad()
def speak(
    talker: Talker, tokenizer: TextTokenizer, texts: list[tuple[int, str]], *, is_streaming: bool,
    temperature: float, top_k: int, frames_per_token: float = 4.0,
) -> list[Tensor]:  # fmt: skip
    """Codes [T, books] of each text. A text is a speaker index and a sentence."""
    config, ids = talker.config, Ids.of(tokenizer)
    prompts = [
        prompt_rows(
            tokenizer.encode(t), config, ids,
            speaker=speaker, is_streaming=is_streaming, is_auto=False,
        )
        for speaker, t in texts
    ]  # fmt: skip
    most = 24 + int(frames_per_token * max(len(tokenizer.encode(t)) for _, t in texts))
    heads = torch.tensor([len(p[0]) for p in prompts], device=DEVICE)
    rows = int(heads.max()) + most
    text = torch.full((len(texts), rows), ids.pad, device=DEVICE)
    codes = torch.full((len(texts), rows, config.num_code_groups), NO_CODE, device=DEVICE)
    for index, (head_text, head_codec, trailing) in enumerate(prompts):
        line = head_text + trailing
        text[index, : len(line)] = torch.tensor(line, device=DEVICE)
        codes[index, : len(head_codec), 0] = torch.tensor(head_codec, device=DEVICE)
    item = torch.arange(len(texts), device=DEVICE)
    ended = torch.full_like(heads, most)
    eos, size = config.codec_eos_token_id, config.code_predictor_config.vocab_size
    for step in range(most):
        length = int(heads.max()) + step
        x = embed(talker, text[:, :length], codes[:, :length])
        hidden = talker(x, talker.rope.span(0, length, x), attend_causally)[item, heads + step - 1]
        logits = talker.codec_head(hidden).float()
        keep = torch.zeros_like(logits[0], dtype=torch.bool)
        keep[:size] = True
        keep[eos] = step >= 2
        first = draw(logits.masked_fill(~keep, -torch.inf), temperature, top_k)
        ended = torch.where((first == eos) & (ended == most), step, ended)
        if bool((ended < most).all()):
            break
        frame = predict(talker, hidden, first.clamp(max=size - 1), temperature, top_k)
        codes[item, heads + step] = frame
    return [codes[i, int(heads[i]) : int(heads[i]) + int(ended[i])] for i in range(len(texts))]


def predict(
    talker: Talker, hidden: Tensor, first: Tensor, temperature: float, top_k: int
) -> Tensor:
    """The frame [B, books] whose first codes are `first`."""
    predictor = talker.code_predictor
    tables = [talker.model.codec_embedding, *predictor.model.codec_embedding]
    codes, inputs = [first], [hidden]
    for book in range(len(predictor.lm_head)):
        inputs.append(tables[book](codes[-1]))
        x = predictor(torch.stack(inputs, dim=1), 0, attend_causally)
        codes.append(draw(predictor.lm_head[book](x[:, -1]), temperature, top_k))
    return torch.stack(codes, -1)


@torch.no_grad()
def write_speech(
    settings: SimpleNamespace, talker: Talker, tokenizer: TextTokenizer, codes: Codes, out: Path,
    log: Log,
) -> None:  # fmt: skip
    """Write spoken dev sentences as int16 to one file."""
    config = settings.train_talker
    decoder = CodecDecoder(decoder_config(settings)).to(DEVICE)
    load_half(Path(config.decoder), decoder)
    lines = all_lines(settings.data)
    chosen = [int(line) for line in codes.lines[: min(config.num_samples, codes.num_dev)]]
    arrays = {}
    for name, is_streaming, temperature in (
        ("whole", False, config.temperature),
        ("greedy", False, 0.0),
        ("streaming", True, config.temperature),
    ):
        spoken = speak(
            talker, tokenizer, [(i // SPEAKER, lines[i % SPEAKER]) for i in chosen],
            is_streaming=is_streaming, temperature=temperature, top_k=config.top_k,
        )  # fmt: skip
        true = codes.frames[: len(chosen)]
        ratio = [len(s) / int(t) for s, t in zip(spoken, true, strict=True)]
        log(
            "speak", name=name, ratio=float(np.mean(ratio)), longest=max(ratio), shortest=min(ratio)
        )
        for line, found in zip(chosen, spoken, strict=True):
            if not len(found):
                continue
            samples = decoder(found[None], CausalState())[0][: 20 * 12 * FRAME]
            arrays[f"{name}_{line}"] = (samples * 32767).round().to(torch.int16).cpu().numpy()
    np.savez_compressed(out / "speech.npz", **arrays)
