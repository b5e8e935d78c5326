"""The recipe can continue from the shipped voice."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from safetensors.torch import load_file

from tests.support.project import ROOT
from vivace.model.config_file import load_model_config

pytest.importorskip("tomllib", reason="the recipe reads TOML with Python 3.11's own library")
WEIGHTS = ("model.safetensors", "speech_tokenizer/model.safetensors")


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(ROOT)  # the settings contain relative paths
    from recipes.mini_voice import import_asset

    return import_asset


def test_import_and_export_preserve_shipped_weights(recipe: ModuleType, tmp_path: Path) -> None:
    from recipes.mini_voice.export import export
    from recipes.mini_voice.settings import load_settings

    config, parts = load_model_config(recipe.ASSET / "config.json"), tmp_path / "parts"
    recipe.import_asset(recipe.ASSET, parts)
    settings = load_settings(
        False, [f"codec.num_quantizers={config.talker_config.num_code_groups}"]
    )
    speakers = parts if config.can_clone else None
    export(settings, parts, parts, tmp_path / "made", speakers_from=speakers)
    names = {path.relative_to(recipe.ASSET) for path in recipe.ASSET.rglob("*.*")}
    assert names == {path.relative_to(tmp_path / "made") for path in tmp_path.rglob("made/**/*.*")}
    for name in WEIGHTS:
        shipped, made = load_file(recipe.ASSET / name), load_file(tmp_path / "made" / name)
        assert shipped.keys() == made.keys()
        # The codec's encoder is untrained: the export draws random weights.
        trained = [key for key in shipped if not key.startswith("encoder.")]
        assert trained
        assert [key for key in trained if not shipped[key].equal(made[key])] == []
    for name in sorted(map(str, names)):
        if name not in WEIGHTS:
            assert (tmp_path / "made" / name).read_bytes() == (recipe.ASSET / name).read_bytes()


def test_import_copies_missing_files_from_shared_folder(recipe: ModuleType, tmp_path: Path) -> None:
    shared, out = tmp_path / "shared", tmp_path / "out"
    shared.mkdir()
    out.mkdir()
    with pytest.raises(SystemExit, match=r"lacks encoder\.safetensors, .*--shared or MINI_VOICE"):
        recipe.copy_shared(shared, out)
    for name in recipe.SHARED_FILES:
        (shared / name).write_text(name)
    recipe.copy_shared(shared, out)
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        name: name for name in recipe.SHARED_FILES
    }


def test_dropout_acts_in_layers_during_training_only(recipe: ModuleType) -> None:
    """The layers call no hooks, so dropout must not depend on one."""
    import torch

    from recipes.mini_voice.settings import load_settings
    from recipes.mini_voice.talker_files import build
    from recipes.mini_voice.talker_stage import Dropout
    from vivace.model.cache import attend_causally
    from vivace.text.tokenizer import TextTokenizer

    settings = load_settings(True, [])
    talker = build(settings, TextTokenizer.from_folder(Path(settings.tokenizer.folder)))
    x = torch.ones(1, 4, settings.talker.hidden_size)

    def hidden() -> torch.Tensor:
        with torch.no_grad():
            return talker(x, talker.rope.span(0, 4, x), attend_causally)

    plain, dropout = hidden(), Dropout(talker, 0.5)
    torch.manual_seed(1)
    assert not hidden().equal(plain)
    dropout.is_on = False
    assert hidden().equal(plain)
