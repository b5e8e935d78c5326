"""Training with two speakers, added codebooks, and prefetching."""

from __future__ import annotations

import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.project import ROOT

pytest.importorskip("tomllib", reason="the recipe reads TOML with Python 3.11's own library")
SPEAKERS = 'data.speakers=["heart", "michael"]'
LINES = [f"Line {number} is here." for number in range(10)]


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Settings with a file of lines, two speakers and tiny sizes."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(ROOT)
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    paths = {"lines": tmp_path / "lines.txt", "rare": tmp_path / "none"}
    return [SPEAKERS, *(f'data.{name}="{path}"' for name, path in paths.items())]


def settings_of(overrides: list[str]) -> SimpleNamespace:
    from recipes.mini_voice.settings import load_settings

    return load_settings(True, overrides)


def test_shards_have_one_speaker_and_dev_lines_first(lines: list[str]) -> None:
    from recipes.mini_voice.synthesize import plan

    other = ["data.num_dev_other=2", "data.num_lines_other=3", "data.lines_per_shard=4"]
    # Shards of other speakers are an eighth as long.
    shards = plan(settings_of([*lines, "data.num_dev=4", *other]).data)
    numbers = [[number for number, _ in shard] for shard in shards]
    million = 1_000_000
    assert numbers == [
        [0, 1, 2, 3],
        [million],
        [million + 1],
        [4, 5, 6, 7],
        [8, 9],
        [million + 4],
        [million + 5],
        [million + 6],
    ]
    assert shards[-1][0][1] == LINES[6]


def test_synthesis_stops_on_request_and_late_shards_are_ignored(
    lines: list[str], tmp_path: Path
) -> None:
    from recipes.mini_voice.store import Store
    from recipes.mini_voice.synthesize import STOP, work

    shards = tmp_path / "shards"
    shards.mkdir()
    data = settings_of([*lines, f'data.shards="{shards}"']).data
    (shards / STOP).touch()
    jobs: queue.SimpleQueue[object] = queue.SimpleQueue()
    jobs.put((0, [(0, LINES[0])]))
    work(data, jobs, shards)  # without a teacher, synthesis would fail
    assert not list(shards.glob("*.npz"))
    store = Store(data, 6)
    assert not store.is_complete
    store.close()
    np.savez(shards / "00000.npz", audio=np.zeros(1920, np.int16), labels=np.zeros(2, np.uint8),
             lines=np.array([0], np.int32), frames=np.array([1], np.int32))  # fmt: skip
    store.poll()
    assert (store.is_complete, store.dev.num_frames) == (True, 0)


def test_utterance_is_trained_with_its_speaker_id(lines: list[str]) -> None:
    from recipes.mini_voice.encode import Codes
    from recipes.mini_voice.rows import build_examples
    from recipes.mini_voice.settings import talker_config
    from vivace.text.tokenizer import TextTokenizer

    settings = settings_of(lines)
    tokenizer = TextTokenizer.from_folder(Path(settings.tokenizer.folder))
    config = talker_config(settings, 512)
    numbers, frames = np.array([3, 1_000_003]), np.array([6, 5])
    codes = Codes(np.zeros((11, 6), np.int16), np.zeros(22, np.uint8), numbers, frames, 0)
    found = build_examples(codes, tokenizer, config, settings, range(2), variants=1)
    speakers = []
    for start, length in zip(found.starts, found.lengths, strict=True):
        ids = set(found.codec[start : start + length].tolist())
        speakers.append(ids & set(config.spk_id.values()))
    assert config.spk_id == {"heart": 1500, "michael": 1501}
    assert speakers == [{1500}, {1501}]


def test_speaker_continues_after_its_own_last_line(lines: list[str]) -> None:
    from recipes.mini_voice.encode import Codes
    from recipes.mini_voice.more_codes import unread

    data = settings_of([*lines, "data.num_dev=4"]).data
    none = np.zeros((0, 6), np.int16), np.zeros(0, np.uint8)
    read = Codes(*none, np.array([0, 7, 1_000_005]), np.zeros(3, np.int64), 1)
    assert unread(data, read, 0) == [(8, LINES[8]), (9, LINES[9])]
    assert unread(data, read, 1)[0] == (1_000_006, LINES[6])
    assert unread(data, Codes(*none, np.array([9]), np.zeros(1), 1), 1)[0][0] == 1_000_004


def test_added_codebooks_keep_existing_ones(lines: list[str], tmp_path: Path) -> None:
    """The talker continues too. Weights of another model are rejected."""
    import torch

    from recipes.mini_voice import talker_files, train_codec
    from vivace.text.tokenizer import TextTokenizer

    six, eight = settings_of(lines), settings_of([*lines, "codec.num_quantizers=8"])
    before, after = train_codec.build(six).eval(), train_codec.build(eight).eval()
    before.books.vectors.normal_()
    train_codec.save(before, tmp_path)
    assert train_codec.restore(after, tmp_path) == 6
    samples = torch.randn(2, 5 * 1920, generator=torch.Generator().manual_seed(1)) * 0.1
    train_codec.restore(before, tmp_path)  # as written, in 16 bits
    with torch.no_grad():
        assert before.encode(samples).equal(after.encode(samples)[..., :6])
    tokenizer = TextTokenizer.from_folder(Path(six.tokenizer.folder))
    old, new = talker_files.build(six, tokenizer), talker_files.build(eight, tokenizer)
    talker_files.save(old, tmp_path)
    talker_files.load(new, tmp_path)
    assert len(new.code_predictor.lm_head) == len(old.code_predictor.lm_head) + 2
    deeper = talker_files.build(settings_of([*lines, "talker.num_hidden_layers=2"]), tokenizer)
    with pytest.raises(SystemExit, match=r"belongs to another model: .*layers"):
        talker_files.load(deeper, tmp_path)


def test_padded_batch_gives_each_utterance_its_own_codes(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from recipes.mini_voice import more_codes, train_codec

    trainer = train_codec.build(settings_of(lines)).eval()
    trainer.books.vectors.normal_()
    rng = np.random.default_rng(2)
    waves = [(rng.normal(0, 3000, n * 1920)).astype(np.int16) for n in (12, 30, 9, 21, 14)]
    alone = [more_codes.encode_waves(trainer, [wave])[0] for wave in waves]
    monkeypatch.setattr(more_codes, "PER_PASS", 2)
    monkeypatch.setattr(more_codes, "GRID", 8 * 1920)
    together = more_codes.encode_waves(trainer, waves)
    assert [len(codes) for codes in together] == [12, 30, 9, 21, 14]
    for one, many in zip(alone, together, strict=True):
        # The padding affects only the last frames.
        assert np.mean(one[:-4] == many[:-4]) > 0.9


def test_prefetch_keeps_order_and_raises_error(lines: list[str]) -> None:
    from recipes.mini_voice.more_codes import ahead

    def reading() -> Iterator[Any]:
        yield from ([1], [2, 3])
        raise SystemExit("a worker ended")

    taken: Iterator[Any] = ahead(reading())
    assert [next(taken), next(taken)] == [[1], [2, 3]]
    with pytest.raises(SystemExit, match="a worker ended"):
        next(taken)


class Session:
    """A stub of onnxruntime's session that returns two samples for every input."""

    def __init__(self, model: str, *_: object, **__: object) -> None:
        assert model.endswith("kokoro.onnx")

    def run(self, _: None, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [np.full(2, feed["style"][0, 0]), np.ones(feed["tokens"].shape)]


@pytest.mark.parametrize("fails_at", ["start", "line", "memory"])
def test_worker_continues_on_cpu_after_gpu_failure(
    lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], fails_at: str,
) -> None:  # fmt: skip
    import torch

    from recipes.mini_voice import common, onnx_graph
    from recipes.mini_voice.synthesize import Kokoro
    from recipes.mini_voice.voices import Voice

    calls = []

    def graph(*_: object) -> object:
        if fails_at == "start":
            raise RuntimeError("no CUDA device")

        def run(**_: object) -> list[np.ndarray]:
            calls.append("gpu")
            if fails_at == "memory" and len(calls) > 1:
                return [np.full(2, 5.0), np.ones((1, 4))]
            raise (torch.OutOfMemoryError if fails_at == "memory" else RuntimeError)("illegal")

        return run

    fake = SimpleNamespace(SessionOptions=SimpleNamespace, InferenceSession=Session)
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)
    monkeypatch.setattr(common, "DEVICE", torch.device("cuda"))
    monkeypatch.setattr(onnx_graph, "OnnxGraph", graph)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: calls.append(f"{count} thread"))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share: None)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda name: None)
    np.repeat(np.arange(10, dtype=np.float32), 256).tofile(tmp_path / "michael.bin")
    kokoro = Kokoro(str(tmp_path / "kokoro.onnx"))
    voice = Voice.from_file(tmp_path / "michael.bin")
    assert calls.pop(0) == "1 thread"
    for _ in range(2):
        wave, durations = kokoro([0, 7, 8, 0], voice)
        assert (len(wave), durations.tolist()) == (2, [1, 1, 1, 1])
    said = capsys.readouterr().out
    assert ("continues without the GPU" in said) == (fails_at != "memory")
    assert wave[0] == (5 if fails_at == "memory" else 2)
    assert len(calls) == {"start": 0, "line": 1, "memory": 3}[fails_at]


def test_shared_codebook_identifies_speaker_with_small_loss(
    lines: list[str], tmp_path: Path
) -> None:
    import torch

    from recipes.mini_voice import share_books, train_codec

    settings = settings_of(lines)
    trainer = train_codec.build(settings).eval()
    books = trainer.books
    books.vectors.normal_(generator=torch.Generator().manual_seed(4))
    last = books.vectors[-1].clone()
    counts = torch.arange(len(last))
    owner = share_books.divide(last, counts, 2)
    table = share_books.moves(last, owner)
    assert int((owner == 0).sum()) == len(last) // 2
    assert bool((owner[table] == 0).all())
    assert table[owner == 0].tolist() == torch.arange(len(last))[owner == 0].tolist()
    lost = (counts * (last - last[table]).square().sum(-1)).sum()
    of_the_rarest = torch.arange(len(last)) < len(last) // 2
    plain = share_books.moves(last, of_the_rarest.long())
    assert lost < (counts * (last - last[plain]).square().sum(-1)).sum()
    share_books.set_marks(books, owner, 5.0)
    train_codec.save(trainer, tmp_path)
    samples = torch.randn(2, 9 * 1920, generator=torch.Generator().manual_seed(1)) * 0.1
    for speaker in (0, 1):
        of_one = train_codec.build(settings, speaker).eval()
        train_codec.restore(of_one, tmp_path)
        with torch.no_grad():
            codes = of_one.encode(samples)
            first, rest = of_one.branches(of_one.encoder(samples))
            _, quantised, commit = of_one.quantise(first, rest, learn=False)
        assert set(owner[codes[..., -1]].flatten().tolist()) == {speaker}
        vectors = [of_one.books.vectors[i][codes[..., i]] for i in range(1, codes.shape[-1])]
        total = torch.stack(vectors).sum(0)
        of_one.dropout = 0.0
        _, quantised, commit = of_one.quantise(first, rest, learn=False)
        assert torch.allclose(quantised, total, atol=1e-4)
        # The speaker offset is orthogonal to the encoder's vectors.
        assert float(commit) < 2 * float(first.square().mean() + rest.square().mean() + 2)


def test_crops_are_balanced_between_speakers_and_in_range(lines: list[str], tmp_path: Path) -> None:
    from recipes.mini_voice.store import Store
    from recipes.mini_voice.synthesize import plan

    shards = tmp_path / "shards"
    shards.mkdir()
    counts = ["data.num_dev=2", "data.num_dev_other=1", "data.num_lines_other=2"]
    data = settings_of([*lines, *counts, f'data.shards="{shards}"']).data
    for index, read in enumerate(plan(data)):
        numbers = np.array([number for number, _ in read], np.int32)
        frames = np.full(len(read), 30, np.int32)
        np.savez(
            shards / f"{index:05d}.npz", audio=np.zeros(frames.sum() * 1920, np.int16),
            labels=np.zeros(2 * frames.sum(), np.uint8), lines=numbers, frames=frames,
        )  # fmt: skip
    store = Store(data, 6)
    store.wait(complete=True, timeout=1)
    owners = np.repeat(np.asarray(store.train.lines) // 1_000_000, store.train.frames)
    assert sorted(set(owners.tolist())) == [0, 1]
    begins = np.concatenate([store.sample_frames(8, 10, 4).numpy() for _ in range(200)])
    own = np.arange(len(begins)) % 2
    # A crop that would pass the end begins earlier.
    is_inside = begins < len(owners) - 12
    assert (owners[begins] == own)[is_inside].all()
    assert len(set(begins.tolist())) > 100
    second = store.sample_frames(64, 10, 8, speaker=1).numpy()
    assert (owners[second] == 1).all()


def test_merged_codes_have_every_utterance_once(lines: list[str], tmp_path: Path) -> None:
    from recipes.mini_voice import encode
    from recipes.mini_voice.encode import Codes
    from recipes.mini_voice.merge_codes import merge

    rng = np.random.default_rng(8)

    def read(numbers: list[int], num_dev: int) -> Codes:
        """Codes that equal the number of their line, so that the test can match them."""
        frames = rng.integers(2, 6, len(numbers))
        codes = np.repeat(np.asarray(numbers) % 500, frames)[:, None] + np.zeros(6, int)
        labels = np.repeat(np.asarray(numbers) % 170, 2 * frames).astype(np.uint8)
        return Codes(codes.astype(np.int16), labels, np.asarray(numbers), frames, num_dev)

    first, second = read([0, 1, 5], 2), read([0, 1, 5, 7, 9], 2)
    first = encode.with_leads(first, np.zeros((2, 3, 6), np.int16))
    found = merge([first, second, read([1_000_001, 9], 0)])
    assert found.lines.tolist() == [0, 1, 5, 7, 9, 1_000_001]
    assert found.num_dev == 2
    encode.write(found, tmp_path)
    back = encode.read(tmp_path)
    for number, own in back.by_line().items():
        assert set(own.ravel().tolist()) == {number % 500}
    assert (back.labels == np.repeat(back.lines % 170, 2 * back.frames)).all()


def test_average_decoders_writes_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from safetensors.torch import load_file

    from recipes.mini_voice import average_decoders
    from recipes.mini_voice.common import save_half

    book, weight = "layers.0._codebook.embedding_sum", "decoder.0.weight"
    books, draw = torch.randn(8, 4), torch.Generator().manual_seed(4)
    weights = [torch.randn(3, 5, generator=draw) for _ in range(3)]
    folders = [str(tmp_path / str(n)) for n in range(3)]
    for folder, own in zip(folders, weights, strict=True):
        save_half(Path(folder) / average_decoders.NAME, {book: books, weight: own})

    def run(*chosen: str) -> dict[str, Any]:
        monkeypatch.setattr("sys.argv", ["average_decoders", *chosen, "--out", str(tmp_path)])
        average_decoders.main()
        return load_file(tmp_path / average_decoders.NAME)

    found = run(*folders)
    torch.testing.assert_close(found[weight].float(), sum(weights) / 3, rtol=0, atol=2e-3)
    assert torch.equal(found[book], books.half())
    last = Path(folders[2]) / average_decoders.NAME
    save_half(last, {book: books.roll(1, 0), weight: weights[2]})
    with pytest.raises(SystemExit, match="different codes: layers"):
        run(*folders)
    save_half(last, {book: books})
    with pytest.raises(SystemExit, match="different models"):
        run(*folders)


def test_codebook_is_divided_once_with_or_without_leads(
    lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recipes.mini_voice import encode, share_books, train_codec

    before, rng = tmp_path / "before", np.random.default_rng(6)
    trainer = train_codec.build(settings_of(lines))
    trainer.books.vectors.normal_()
    train_codec.save(trainer, before)
    codes = rng.integers(0, 512, (3000, 6)).astype(np.int16)
    spoken = encode.Codes(codes, np.zeros(6000, np.uint8), np.arange(6), np.full(6, 500), 2)
    encode.write(spoken, before)
    sets = [word for item in lines for word in ("--set", item)]

    def share(resume: Path, out: Path) -> encode.Codes:
        arguments = ["share_books", "--smoke", *sets, "--resume", str(resume), "--out", str(out)]
        monkeypatch.setattr("sys.argv", arguments)
        share_books.main()
        return encode.read(out)

    plain = share(before, tmp_path / "plain")
    np.save(before / encode.LEADS, rng.integers(0, 512, (40, 3, 6)).astype(np.int16))
    share(before, tmp_path / "led")
    files = [tmp_path / name / "encoder.safetensors" for name in ("plain", "led")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert (plain.codes[:, :-1] == codes[:, :-1]).all()
    assert len(np.unique(plain.codes[:, -1])) == 256
    with pytest.raises(SystemExit, match="the last book is divided"):
        share(tmp_path / "plain", tmp_path / "again")
