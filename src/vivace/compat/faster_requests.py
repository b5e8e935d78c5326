"""Builds a `Request` from the arguments of faster-qwen3-tts, with the checks made there."""

from __future__ import annotations

import logging
from typing import Any

from vivace.compat.official import Qwen3TTSModel
from vivace.compat.speaking import request
from vivace.script.request import Request
from vivace.voices.voice import Voice

log = logging.getLogger(__name__)


def clone_request(
    text: str,
    language: str | None,
    voice: Voice,
    instruct: str | None,
    non_streaming_mode: bool | None,
) -> Request:
    if instruct and not voice.is_in_context:
        log.warning("instruct with a speaker's vector alone is followed unreliably")
    return request(text, language, voice, instruct, is_whole=non_streaming_mode or False)


def preset_request(
    model: Qwen3TTSModel,
    text: str,
    speaker: str | None,
    language: str,
    instruct: str | None,
    non_streaming_mode: bool | None,
) -> Request:
    if model.model.tts_model_type != "custom_voice":
        raise ValueError("Loaded model does not support custom voice generation")
    model._validate_languages([language])
    model._validate_speakers([speaker])
    followed = instruct if model.model.config.honours_instruct else None
    return request(text, language, speaker, followed, is_whole=non_streaming_mode is not False)


def design_request(
    model: Qwen3TTSModel,
    text: str,
    instruct: str | None,
    language: str,
    non_streaming_mode: bool | None,
) -> Request:
    if model.model.tts_model_type != "voice_design":
        raise ValueError("Loaded model does not support voice design generation")
    model._validate_languages([language])
    return request(text, language, None, instruct, is_whole=non_streaming_mode is not False)


def refuse_ggml(*references: Any) -> None:
    if any(reference is not None for reference in references):
        raise NotImplementedError(
            "ref_spk/ref_rvq cached qwentts.cpp references require backend='ggml'. "
            "Use voice_clone_prompt for precomputed prompts."
        )
