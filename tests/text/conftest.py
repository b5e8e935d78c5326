from __future__ import annotations

from pathlib import Path

import pytest
from real_vocabulary import Ranks, read_ranks, write_tokenizer


@pytest.fixture(scope="session")
def real_ranks() -> Ranks:
    return read_ranks()


@pytest.fixture(scope="session")
def real_folder(tmp_path_factory: pytest.TempPathFactory, real_ranks: Ranks) -> Path:
    """A folder with the tokenizer files of the released checkpoints."""
    folder = tmp_path_factory.mktemp("released")
    write_tokenizer(folder, real_ranks)
    return folder
