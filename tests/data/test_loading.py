"""Loading: batches, broken images, workers, and going on where one stopped."""

from pathlib import Path

import numpy as np
import pytest
import torch

from nearfar.data import (
    BalancedSampler,
    EvalTransform,
    Files,
    Loader,
    PKSampler,
    PlainSampler,
    Table,
    TooManyBrokenImagesError,
    TrainTransform,
)
from nearfar.data.tables import split_column
from nearfar.errors import InputError
from tests.data.making import encoded, image

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def made(folder: Path, count: int, broken: tuple[int, ...] = ()) -> Table:
    """Row i is of grey 10 i and class i // 3."""
    for i in range(count):
        image(folder / f"{i}.png", 10 * i)
    for i in broken:
        folder.joinpath(f"{i}.png").write_bytes(encoded(0, kind="PNG")[:40])
    labels = np.arange(count) // 3
    names = tuple(str(i) for i in range(labels.max() + 1))
    files = Files(folder, [f"{i}.png" for i in range(count)])
    return Table("made", labels, names, split_column(["train"] * count), files)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_row_comes_with_its_image_and_label(tmp_path: Path, workers: int) -> None:
    table = made(tmp_path, 10)
    loader = Loader(table, EvalTransform(4, None, **PLAIN), 4, workers=workers)
    batches = list(loader)
    assert [len(batch.rows) for batch in batches] == [4, 4, 2] and len(loader) == 3
    assert torch.cat([batch.rows for batch in batches]).tolist() == list(range(10))
    for batch in batches:
        assert batch.images.shape[1:] == (3, 4, 4)
        assert (batch.images.mean((1, 2, 3)) * 255).round().tolist() == (10 * batch.rows).tolist()
        assert batch.labels.tolist() == (batch.rows // 3).tolist()
    assert len(loader.faults) == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_images_are_skipped_counted_and_listed(tmp_path: Path, workers: int) -> None:
    table = made(tmp_path, 10, broken=(2, 7))
    tmp_path.joinpath("5.png").unlink()
    loader = Loader(table, EvalTransform(4, None), 2, workers=workers, max_broken=0.5)
    for _ in range(2):  # a second look counts nothing twice
        assert [row for batch in loader for row in batch.rows.tolist()] == [0, 1, 3, 4, 6, 8, 9]
        assert len(loader.faults) == 3 and loader.faults.fraction == 0.3
    listed = loader.faults.listed()
    assert [Path(line.partition(":")[0]).name for line in listed] == ["2.png", "5.png", "7.png"]
    assert listed[1].endswith("5.png: no such file")


def test_a_batch_without_images_is_left_out(tmp_path: Path) -> None:
    loader = Loader(made(tmp_path, 4, broken=(0, 1)), EvalTransform(4, None), 2, max_broken=0.5)
    assert [batch.rows.tolist() for batch in loader] == [[2, 3]]
    sampler = PlainSampler(4, 2, shuffle=False, world_size=2, rank=0)
    with pytest.raises(TooManyBrokenImagesError, match="all 2 images of a batch are broken, and the other ranks wait"):
        list(Loader(made(tmp_path, 4, broken=(0, 1)), EvalTransform(4, None), sampler, max_broken=0.5))


def test_too_many_broken_images_are_an_error(tmp_path: Path) -> None:
    table = made(tmp_path, 10, broken=(1, 2))
    assert sum(len(b.rows) for b in Loader(table, EvalTransform(4, None), 5, max_broken=0.2)) == 8
    message = r"2 of 10 images are broken, more than the 10.00% allowed. The first: .*1\.png: .*2\.png: .*max_broken"
    with pytest.raises(TooManyBrokenImagesError, match=message):
        list(Loader(table, EvalTransform(4, None), 5, max_broken=0.1))
    with pytest.raises(ValueError, match="must be from 0 to 1, not 2"):
        Loader(table, EvalTransform(4, None), 5, max_broken=2)


def test_a_mistake_in_a_transform_is_not_a_broken_image(tmp_path: Path) -> None:
    def wrong(image: object) -> torch.Tensor:
        raise KeyError("mistake")

    with pytest.raises(KeyError, match="mistake"):
        list(Loader(made(tmp_path, 3), wrong, 1))


def test_any_callable_is_a_transform(tmp_path: Path) -> None:
    loader = Loader(made(tmp_path, 3), lambda image: image.resize((2, 2)), 3)
    (batch,) = loader
    assert batch.images.shape == (3, 3, 2, 2)
    torch.testing.assert_close(batch.images[:, 0, 0, 0] * 255, torch.tensor([0.0, 10.0, 20.0]))


def test_augmentation_depends_on_seed_epoch_and_place_not_on_workers(tmp_path: Path) -> None:
    table = made(tmp_path, 9)
    transform = TrainTransform(8, color=0.5, erase=0.5)

    def epochs(workers: int, seed: int) -> list[torch.Tensor]:
        loader = Loader(table, transform, PKSampler(table.labels, 2, 4, seed=1), workers=workers, seed=seed)
        return [torch.cat([batch.images for batch in loader]) for _ in range(2)]

    here, there, other = epochs(0, 0), epochs(2, 0), epochs(0, 1)
    assert torch.equal(here[0], there[0]) and torch.equal(here[1], there[1])
    assert not torch.equal(here[0], other[0]) and not torch.equal(here[0], here[1])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 3, 4, 6])
def test_resumed_is_uninterrupted_however_far_workers_ran_ahead(tmp_path: Path, workers: int, stop: int) -> None:
    table = made(tmp_path, 12)

    def loader() -> Loader:
        sampler = BalancedSampler(table.labels, 3, seed=5)
        return Loader(table, TrainTransform(8, erase=0.5), sampler, workers=workers, seed=2)

    whole = loader()
    expected = [batch for _ in range(2) for batch in whole]
    stopped, seen = loader(), []
    while len(seen) < stop:
        for batch in stopped:
            seen.append(batch)
            if len(seen) == stop:
                break
    again = loader()
    again.load_state_dict(stopped.state_dict())
    while len(seen) < len(expected):
        seen += list(again)
    assert [batch.rows.tolist() for batch in seen] == [batch.rows.tolist() for batch in expected]
    assert all(torch.equal(a.images, b.images) for a, b in zip(seen, expected, strict=True))


def test_an_epoch_that_was_broken_off_begins_again(tmp_path: Path) -> None:
    table = made(tmp_path, 12)
    loader = Loader(table, EvalTransform(4, None), PlainSampler(12, 2, seed=1), workers=2)
    first = next(iter(loader)).rows.tolist()
    assert next(iter(loader)).rows.tolist() == first
    loader.set_epoch(1)
    assert next(iter(loader)).rows.tolist() != first


def test_features_are_not_loaded_as_images() -> None:
    table = Table("x", np.array([0]), ("a",), split_column(["test"]), columns={"features": np.zeros((1, 2))})
    with pytest.raises(ValueError, match=r"x has no images, only features: use table.features"):
        Loader(table, EvalTransform(), 1)


def test_the_benchmark_compares_the_same_images(tmp_path: Path) -> None:
    loading = pytest.importorskip("benchmarks.loading")
    from benchmarks.extraction import photographs

    for interpolation in ("bilinear", "bicubic"):
        paths = photographs(tmp_path, 2)
        plain = loading.Plain(paths, False, interpolation)
        for i, path in enumerate(paths):
            ours = EvalTransform(224, 256, interpolation=interpolation)(path)
            apart = (ours - plain[i]).abs().mean()  # crops are of whole pixels: half a pixel's grain
            assert apart < 0.07 < (ours[:, :, 2:] - plain[i][:, :, :-2]).abs().mean()
    rows = loading.measure(tmp_path, 2, 0, 1, tmp_path / "rows.csv")
    assert len(rows) == 4 and all(ours > 0 and plain > 0 for _, ours, plain, _ in rows)
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 5


def test_chance_of_other_transforms_too_depends_on_seed_epoch_and_place(tmp_path: Path) -> None:
    table = made(tmp_path, 6)

    def epochs(workers: int, seed: int) -> list[torch.Tensor]:
        loader = Loader(table, noise, PlainSampler(6, 2, seed=1), workers=workers, seed=seed)
        return [torch.cat([batch.images for batch in loader]) for _ in range(2)]

    here, there, other = epochs(0, 0), epochs(2, 0), epochs(0, 1)
    assert torch.equal(here[0], there[0]) and torch.equal(here[1], there[1])
    assert not torch.equal(here[0], other[0]) and not torch.equal(here[0], here[1])
    assert len(here[0].unique()) == 6


def noise(image: object) -> torch.Tensor:
    return torch.rand(1, 1, 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_global_generator_is_left_alone(tmp_path: Path, workers: int) -> None:
    """A resumed run begins one iteration more than one that went through; dropout must not notice."""
    table = made(tmp_path, 3)
    before = torch.get_rng_state()
    for transform in (TrainTransform(4), noise):
        list(Loader(table, transform, PlainSampler(3, 2), workers=workers))
    assert torch.equal(torch.get_rng_state(), before)


def refusing(_: object) -> torch.Tensor:
    raise InputError("this picture is too small: leave it out")


def mistaken(_: object) -> torch.Tensor:
    return torch.zeros(int("x"))


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_workers_are_those_of_one_process(tmp_path: Path, workers: int) -> None:
    """What is for users comes as it was raised; a bug comes with its traceback."""
    table = made(tmp_path, 4)
    with pytest.raises(InputError, match=r"^this picture is too small: leave it out$"):
        list(Loader(table, refusing, 2, workers=workers))
    with pytest.raises(ValueError, match="invalid literal") as caught:
        list(Loader(table, mistaken, 2, workers=workers))
    assert not isinstance(caught.value, InputError)
    assert not workers or "in mistaken" in str(caught.value)
