"""A server whose presets also clone: enrolment, speech, lists and the choice of the model."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.serve.models.test_voices import WAV, create, ids, speak
from tests.support.serving import Running, running
from vivace.serve.models.served_model import ModelEntry
from vivace.serve.models.voices import Voices
from vivace.serve.settings import ModelSpec, ServeSettings
from vivace.voices.voice import Voice

ENCODED = base64.b64encode(WAV).decode()


@pytest.fixture(scope="module")
def server(cloning_presets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    models = (ModelSpec("mini", str(cloning_presets)),)
    voices = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, models=models, voices=voices, device="cpu")) as server:
        yield server


def error(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    found: dict[str, Any] = response.json()["error"]
    return found


def test_enrolled_voice_is_listed_with_presets_spoken_and_deleted(client: httpx.Client) -> None:
    presets = ids(client)
    assert presets
    assert create(client, "Ada").json()["model"] == "mini"
    assert ids(client) == presets | {"ada"}
    default, own, preset = (
        speak(client, seed=1, **fields).content
        for fields in ({}, {"voice": "ada"}, {"voice": min(presets)})
    )
    assert own not in (default, preset)
    assert error(speak(client, voice="nobody"))["code"] == "voice_not_found"
    assert "ada" in error(speak(client, voice="nobody"))["message"]
    taken = create(client, min(presets))
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "voice_exists")
    assert client.delete("/v1/audio/voices/ada").json()["deleted"] is True
    assert error(speak(client, voice="ada"))["code"] == "voice_not_found"


def test_recording_in_request_is_cloned(client: httpx.Client, server: Running) -> None:
    plain = {"seed": 1, "ref_audio": ENCODED}
    heard = speak(client, **plain)
    assert heard.status_code == 200
    assert speak(client, task_type="Base", **plain).content == heard.content
    assert speak(client, x_vector_only_mode=True, ref_text="Words.", **plain).status_code == 200
    assert speak(client, seed=1).content != heard.content
    width = server.context.models.cards()[0].width
    assert speak(client, speaker_embedding=[0.1] * width).status_code == 200
    assert speak(client, task_type="CustomVoice").status_code == 200


def test_transcript_is_refused_with_its_field(client: httpx.Client) -> None:
    for response, field in (
        (speak(client, ref_audio=ENCODED, ref_text="Words."), "ref_text"),
        (create(client, "eve", transcript="Words."), "transcript"),
    ):
        found = error(response)
        assert (found["param"], found["code"]) == (field, "unsupported")
        assert "leave the transcript out" in found["message"]
    assert "eve" not in ids(client)


def test_capabilities_state_cloning_without_context(client: httpx.Client) -> None:
    [model] = client.get("/v1/audio/models").json()["models"]
    assert (model["type"], model["capabilities"]["clone"]) == ("custom_voice", None)
    assert "transcript" in model["capabilities"]["clone_in_context"]
    assert model["default_voice"]


def test_only_names_of_files_are_looked_up_on_disk(server: Running) -> None:
    voices = Voices(server.context.models.cards()[0], server.context.models._library)
    preset = voices.card.speakers[0]
    assert [voices.reads_files(name) for name in (None, "", "default", preset.upper())] == [
        False
    ] * 4
    assert voices.reads_files("ada")
    assert voices.reads_files("alloy")  # a clone of this name would come before the alias
    assert voices.can_speak


def test_base_model_clones_if_one_is_served(
    cloning_presets: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    models = (ModelSpec("mini", str(cloning_presets)), ModelSpec("b", str(tiny_folder / "base")))
    settings = ServeSettings(port=0, models=models, voices=tmp_path, device="cpu")
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=120) as client:
        made = create(client, "ada", transcript="Words.")
        assert made.json()["model"] == "b"
        assert create(client, "eve", model="mini").json()["model"] == "mini"
        assert error(create(client, "joe", model="mini", transcript="Words."))
        assert speak(client, ref_audio=ENCODED, ref_text="Words.").status_code == 200
        assert speak(client).status_code == 200  # the first model has a default voice


def test_voice_selects_model_of_its_width(server: Running) -> None:
    models = server.context.models
    card = models.cards()[0]
    wide = replace(card, name="wide", width=2 * card.width)
    entry = ModelEntry(ModelSpec("wide", "none"), cards=(wide,))
    library = models._library
    for name, one in (("narrow-one", card), ("wide-one", wide)):
        library.add(Voice(name=name, speaker=np.ones(one.width, np.float32)))
    models._entries["wide"] = entry
    try:
        found = {name: models._find(name)[0][1].name for name in ("narrow-one", "wide-one")}
    finally:
        del models._entries["wide"]
        for name in ("narrow-one", "wide-one"):
            library.remove(name)
    assert found == {"narrow-one": "mini", "wide-one": "wide"}
