import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from nearfar.data import FeatureCache, PlainSampler

DIMENSION = 5


def make(folder: Path, count: int) -> list[Path]:
    """Files that hold their own number."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        (folder / f"{i}.txt").write_text(str(i))
    return [folder / f"{i}.txt" for i in range(count)]


def feature(path: Path, view: int = 0) -> np.ndarray:
    return float(Path(path).read_text()) + 1000 * view + np.arange(DIMENSION) / 10


class Encoder:
    """Reads the files' numbers; remembers what it was asked."""

    def __init__(self, batch: int = 3):
        self.batch, self.asked = batch, []

    def __call__(self, paths, view):
        for start in range(0, len(paths), self.batch):
            chunk = paths[start : start + self.batch]
            self.asked += [(Path(p).name, view) for p in chunk]
            yield np.stack([feature(p, view) for p in chunk]).astype(np.float32)


def test_computed_once(tmp_path):
    paths = make(tmp_path / "images", 7)
    encoder = Encoder()
    cache = FeatureCache(tmp_path / "cache", "network 1")
    expected = np.stack([feature(p) for p in paths]).astype(np.float32)
    seen = []
    features = cache.compute(paths, encoder, progress=lambda done, total: seen.append((done, total)))
    np.testing.assert_array_equal(features[:], expected)
    assert seen == [(0, 7), (3, 7), (6, 7), (7, 7)]
    assert len(encoder.asked) == 7 and features.shape == (7, DIMENSION) and len(features.missing) == 0
    again = FeatureCache(tmp_path / "cache", "network 1").compute(paths[::-1], encoder)
    np.testing.assert_array_equal(again[:], expected[::-1])
    assert len(encoder.asked) == 7
    np.testing.assert_array_equal(again[2], expected[4])
    np.testing.assert_array_equal(again[[5, 1]], expected[[1, 5]])
    assert again[:].flags.writeable


def test_only_what_is_new(tmp_path):
    paths = make(tmp_path / "images", 9)
    cache, encoder = FeatureCache(tmp_path / "cache", "k"), Encoder()
    cache.compute(paths[:4], encoder)
    encoder.asked.clear()
    features = cache.compute(paths[::-1], encoder)  # from two shards
    assert encoder.asked == [(f"{i}.txt", 0) for i in (8, 7, 6, 5, 4)]
    np.testing.assert_allclose(features.take([0, 8, 4, 5])[:, 0], [8, 0, 4, 3])


def test_what_is_lacking_is_counted_and_not_read(tmp_path):
    paths = make(tmp_path / "images", 7)
    cache, encoder = FeatureCache(tmp_path / "cache", "network 1"), Encoder()
    assert cache.lacking(paths) == 7
    cache.compute(paths[:4], encoder)
    assert (cache.lacking(paths), cache.lacking(paths[:4]), cache.lacking(paths, views=2)) == (3, 0, 10)
    assert len(encoder.asked) == 4


def test_stale_features_are_never_used(tmp_path):
    paths = make(tmp_path / "images", 3)
    for identify in ("file", "content"):
        encoder = Encoder()
        cache = FeatureCache(tmp_path / identify, "k", identify=identify)
        for i, p in enumerate(paths):
            p.write_text(str(i))
        cache.compute(paths, encoder)
        for content, same_time in (("9", False), ("8", True), ("12345", True), ("7", False)):
            state = paths[1].stat()
            paths[1].write_text(content)
            when = state.st_mtime_ns if same_time else state.st_mtime_ns + 1
            os.utime(paths[1], ns=(when, when))
            encoder.asked.clear()
            assert cache.compute(paths, encoder)[1][0] == float(content)
            assert encoder.asked == [("1.txt", 0)]
        moved = tmp_path / f"moved-{identify}.txt"
        moved.write_text(paths[0].read_text())
        encoder.asked.clear()
        cache.compute([moved], encoder)
        assert bool(encoder.asked) == (identify == "file")


def test_another_network_or_type_is_another_cache(tmp_path):
    paths = make(tmp_path / "images", 3)
    for key, dtype in (("a", "float32"), ("b", "float32"), ("a", "float16")):
        encoder = Encoder()
        features = FeatureCache(tmp_path / "cache", key, dtype=dtype).compute(paths, encoder)
        assert len(encoder.asked) == 3
        assert features[:].dtype == np.float32
        np.testing.assert_allclose(features[1], feature(paths[1]), rtol=1e-3)
    assert sum(p.stat().st_size for p in (tmp_path / "cache").rglob("*.rows")) == 3 * DIMENSION * (4 + 4 + 2)


def test_a_key_that_lies(tmp_path):
    paths = make(tmp_path / "images", 3)
    FeatureCache(tmp_path / "c", "k").compute(paths[:2], Encoder())
    with pytest.raises(ValueError, match="holds features of 5 dimensions under this key, not 4"):
        FeatureCache(tmp_path / "c", "k").compute(paths, lambda p, view: [np.zeros((len(p), 4), np.float32)])


def test_views(tmp_path):
    paths = make(tmp_path / "images", 6)
    encoder = Encoder()
    cache = FeatureCache(tmp_path / "cache", "k")
    cache.compute(paths, encoder)
    encoder.asked.clear()
    features = cache.compute(paths, encoder, views=3)
    assert {view for _, view in encoder.asked} == {1, 2}  # the first was there
    assert features.views == 3
    np.testing.assert_allclose(features.take([2, 2, 3], np.array([0, 2, 1]))[:, 0], [2, 2002, 1003])
    drawn = [int(x[0]) // 1000 for seed in range(40) for x in next(features.batches(batch_size=6, seed=seed))[0]]
    counts = np.bincount(drawn, minlength=3)
    assert counts.min() > 50


def test_batches(tmp_path):
    paths = make(tmp_path / "images", 10)
    features = FeatureCache(tmp_path / "cache", "k").compute(paths, Encoder())
    labels = [i % 3 for i in range(10)]
    epoch = list(features.batches(labels, batch_size=4, seed=1))
    assert [len(x) for x, _ in epoch] == [4, 4, 2]
    x, y = torch.cat([x for x, _ in epoch]), torch.cat([y for _, y in epoch])
    assert sorted(x[:, 0].tolist()) == list(range(10))
    assert (x[:, 0].long() % 3 == y).all()
    assert x[:, 0].tolist() != list(range(10))
    assert torch.equal(torch.cat([x for x, _ in features.batches(labels, batch_size=4, seed=1)]), x)
    assert not torch.equal(torch.cat([x for x, _ in features.batches(labels, batch_size=4, seed=2)]), x)
    chosen = list(features.batches(sampler=[[1, 2], [9, 1]]))
    assert [x[:, 0].tolist() for x, _ in chosen] == [[1, 2], [9, 1]]
    assert [rows.tolist() for _, rows in chosen] == [[1, 2], [9, 1]]


def test_views_of_a_resumed_epoch_are_those_of_an_uninterrupted_one(tmp_path):
    features = FeatureCache(tmp_path / "cache", "k").compute(make(tmp_path / "images", 9), Encoder(), views=4)
    whole = [x for x, _ in features.batches(sampler=PlainSampler(9, 2, seed=1), seed=5)]
    resumed = PlainSampler(9, 2, seed=1)
    resumed.seek(0, 2)
    rest = [x for x, _ in features.batches(sampler=resumed, seed=5)]
    assert len(rest) == 3 and all(torch.equal(a, b) for a, b in zip(whole[2:], rest, strict=True))
    following = [x for x, _ in features.batches(sampler=resumed, seed=5)]  # the next epoch draws anew
    assert not torch.equal(torch.cat(following).sort(0).values, torch.cat(whole).sort(0).values)


def test_what_does_not_fit_is_not_kept(tmp_path):
    images = [np.zeros((2, 2), np.uint8)]
    for dtype, value in (("float16", 1e5), ("float32", np.inf)):
        cache = FeatureCache(tmp_path / "cache", "k", dtype=dtype)
        with pytest.raises(ValueError, match=rf"a feature of \S+ is too large for {dtype}"):
            cache.compute(images, lambda chosen, view, value=value: [np.full((1, 2), value, np.float32)])


@pytest.mark.parametrize("content", ["", "{", "[]", '{"dimension": 0}'])
def test_a_damaged_description_is_named(tmp_path, content):
    paths = make(tmp_path / "images", 2)
    cache = FeatureCache(tmp_path / "cache", "k")
    cache.compute(paths, Encoder())
    (cache.folder / "about.json").write_text(content)
    with pytest.raises(ValueError, match=r"about\.json is damaged: remove this folder"):
        cache.compute(paths, Encoder())


def test_broken_images_are_left_out_and_tried_again(tmp_path):
    paths = make(tmp_path / "images", 6)

    def encode(chosen, view):
        rows = np.stack([feature(p) if Path(p).exists() else np.full(DIMENSION, np.nan) for p in chosen])
        yield rows.astype(np.float32)

    paths[2].unlink()
    cache = FeatureCache(tmp_path / "cache", "k")
    features = cache.compute(paths, encode)
    assert features.missing.tolist() == [2]
    with pytest.raises(ValueError, match="image 2 could not be read"):
        features.take([1, 2])
    assert sorted(torch.cat([y for _, y in features.batches(batch_size=2)]).tolist()) == [0, 1, 3, 4, 5]
    assert [y.tolist() for _, y in features.batches(sampler=[[1, 2, 3]])] == [[1, 3]]
    paths[2].write_text("2")
    assert cache.compute(paths, encode).missing.tolist() == []


def test_a_file_that_changes_meanwhile(tmp_path):
    paths = make(tmp_path / "images", 3)

    def encode(chosen, view):
        rows = np.stack([feature(p) for p in chosen]).astype(np.float32)
        paths[1].write_text("12345")
        yield rows

    cache = FeatureCache(tmp_path / "cache", "k")
    with pytest.raises(RuntimeError, match=r"1\.txt was changed while"):
        cache.compute(paths, encode)
    assert cache.compute(paths, Encoder())[1][0] == 12345


def test_images_in_memory(tmp_path):
    images = [np.full((2, 2), i, np.uint8) for i in range(4)]
    calls = []

    def encode(chosen, view):
        calls.append(len(chosen))
        yield np.stack([np.full(DIMENSION, float(image[0, 0])) for image in chosen])

    cache = FeatureCache(tmp_path / "cache", "k")
    assert cache.compute(images, encode)[3][0] == 3
    assert cache.compute(images[1:], encode)[:][:, 0].tolist() == [1, 2, 3]
    assert calls == [4]


# Says what it has come to, and goes on with it once it is told to.
WORKER = """
import sys
from pathlib import Path
import numpy as np
from nearfar.data import FeatureCache, feature_files
def feature(path):
    return float(Path(path).read_text()) + np.arange(5) / 10
feature_files.COMMIT_BYTES = 100
def encode(paths, view):
    for p in paths:
        print(Path(p).name, flush=True)
        sys.stdin.readline()
        yield feature(p)[None].astype(np.float32)
paths = [Path({images!r}) / f"{{i}}.txt" for i in range({count})]
features = FeatureCache({cache!r}, "k").compute(paths, encode)
assert features[:][:, 0].tolist() == list(range({count})), features[:]
"""


class Worker:
    """Computes features in a process of its own, one after the other."""

    def __init__(self, tmp_path: Path, count: int):
        code = WORKER.format(images=str(tmp_path / "images"), cache=str(tmp_path / "cache"), count=count)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def hear(self) -> str:
        """The name of the image that it has come to; it waits."""
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def test_resumes_after_a_kill(tmp_path):
    paths = make(tmp_path / "images", 60)
    worker = Worker(tmp_path, 60)
    for number in range(33):
        assert worker.hear() == f"{number}.txt"
        worker.go_on()
    assert worker.hear() == "33.txt"
    with worker.process as process:
        process.send_signal(signal.SIGKILL)
    # and as a kill in the midst of writing may leave it
    rows = next((tmp_path / "cache").rglob("*.rows"))
    with rows.open("ab") as file:
        file.write(b"\0" * 7)
    with rows.with_suffix(".ids").open("ab") as file:
        file.write(b"\0" * 5)
    encoder = Encoder()
    features = FeatureCache(tmp_path / "cache", "k").compute(paths, encoder)
    assert len(encoder.asked) == 30  # of the 33 that were done, those of the last commit were lost: 100 bytes are 5
    np.testing.assert_array_equal(features[:], np.stack([feature(p) for p in paths]).astype(np.float32))


def test_writers_at_the_same_time(tmp_path):
    paths = make(tmp_path / "images", 25)
    workers = [Worker(tmp_path, 25) for _ in range(2)]
    for number in range(25):  # neither has anything that the other could use
        assert [worker.hear() for worker in workers] == [f"{number}.txt"] * 2
        for worker in workers:
            worker.go_on()
    for worker in workers:
        with worker.process as process:
            assert process.wait() == 0
    encoder = Encoder()
    features = FeatureCache(tmp_path / "cache", "k").compute(paths, encoder)
    assert encoder.asked == []
    np.testing.assert_array_equal(features[:], np.stack([feature(p) for p in paths]).astype(np.float32))


def test_a_power_cut_leaves_no_false_feature(tmp_path):
    """Ids are written after their rows are on the disk; should rows be lost all the same, their ids count for nothing."""
    paths = make(tmp_path / "images", 8)
    FeatureCache(tmp_path / "cache", "k").compute(paths, Encoder())
    rows = next((tmp_path / "cache").rglob("*.rows"))
    os.truncate(rows, 5 * DIMENSION * 4 + 3)
    encoder = Encoder()
    features = FeatureCache(tmp_path / "cache", "k").compute(paths, encoder)
    assert [name for name, _ in encoder.asked] == ["5.txt", "6.txt", "7.txt"]
    assert features[:][:, 0].tolist() == list(range(8))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda n: [np.zeros((n + 1, 2), np.float32)], "at least 1 features more than there are images"),
        (lambda n: [np.zeros((n - 1, 2), np.float32)], "returned 2 features for 3 images"),
        (lambda n: [np.zeros(n, np.float32)], "must return floating-point features"),
        (lambda n: [np.zeros((n, 2), np.int64)], "must return floating-point features"),
    ],
)
def test_bad_encoders(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        FeatureCache(tmp_path / "cache", "k").compute(make(tmp_path / "i", 3), lambda p, view: rows(len(p)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, p: FeatureCache(f, ""), "the key is empty"),
        (lambda f, p: FeatureCache(f, "k", dtype="int8"), "dtype must be"),
        (lambda f, p: FeatureCache(f, "k", identify="name"), "identify must be"),
        (lambda f, p: FeatureCache(f, "k").compute(p, Encoder(), views=0), "views must be at least 1"),
        (lambda f, p: list(FeatureCache(f, "k").compute(p, Encoder()).batches()), "either batch_size or sampler"),
        (
            lambda f, p: list(FeatureCache(f, "k").compute(p, Encoder()).batches([1], batch_size=1)),
            "1 labels for 2 images",
        ),
        (
            lambda f, p: list(FeatureCache(f, "k").compute(p, Encoder()).batches(batch_size=0)),
            "batch_size must be at least 1",
        ),
    ],
)
def test_bad_calls(tmp_path, call, message):
    with pytest.raises(ValueError, match=message):
        call(tmp_path / "cache", make(tmp_path / "i", 2))
