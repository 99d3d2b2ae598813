"""Which rows are trained on, chosen by, and tested."""

from dataclasses import replace

import numpy as np
import pytest

from nearfar.data import SPLITS, Pixels, Table
from nearfar.data.default_splits import halves_note
from nearfar.training.config import DataConfig
from nearfar.training.options import ConfigError
from nearfar.training.splits import split

ONCE = DataConfig(folds=1)  # validation rows are held out once


def table(labels: list[int], splits: list[str], notes: tuple[str, ...] = ()) -> Table:
    images = Pixels(np.repeat(np.arange(len(labels), dtype=np.uint8), 64).reshape(-1, 8, 8))
    names = tuple(f"class {i}" for i in range(max(labels) + 1))
    ids = np.array([SPLITS.index(name) for name in splits], np.int8)
    return Table("made", np.array(labels), names, ids, images, notes=notes)


def halves(classes: int, each: int, given: bool) -> Table:
    """Half of the classes train, half test, by the data's own word or for want of it."""
    labels = np.repeat(np.arange(classes), each).tolist()
    splits = ["train" if label < (classes + 1) // 2 else "test" for label in labels]
    return table(labels, splits, () if given else (halves_note(classes),))


def test_class_disjoint_parts() -> None:
    parts = split(halves(40, 4, given=True), DataConfig(validation=0.2), seed=0)
    assert parts.open_set
    assert parts.train.num_classes == 15 and parts.val is not None and parts.val.num_classes == 5
    assert parts.train.labels.max() == 14 and parts.train.labels.min() == 0
    names = [{part.label_name(row) for row in range(len(part))} for part in (parts.train, parts.val, parts.test)]
    assert not names[0] & names[1] and not names[0] & names[2] and not names[1] & names[2]
    assert sum(map(len, names)) == 40
    assert any("5 of 20 training classes are held out" in note for note in parts.notes)


def test_the_choice_of_validation_classes_is_the_seed_s() -> None:
    data = halves(40, 4, given=True)
    chosen = [
        tuple(split(data, ONCE, seed).val.label_names[i] for i in split(data, ONCE, seed).val.classes)
        for seed in (0, 0, 1)
    ]
    assert chosen[0] == chosen[1] != chosen[2]


def test_own_validation_rows_are_used() -> None:
    parts = split(table([0, 0, 1, 1, 2, 2], ["train"] * 2 + ["val"] * 2 + ["test"] * 2), DataConfig(), 0)
    assert parts.val is not None and parts.val.label_name(0) == "class 1"
    assert parts.train.labels.tolist() == [0, 0]


def test_rows_to_choose_by_are_all_but_the_test_rows() -> None:
    data = halves(40, 4, given=True)
    chosen = split(data, ONCE, 0).to_choose_by
    assert np.unique(chosen.labels).tolist() == list(range(20)) and len(chosen) == 80


def test_no_validation() -> None:
    parts = split(halves(20, 4, given=True), DataConfig(validation=0), 0)
    assert parts.val is None and parts.train.num_classes == 10
    assert "no validation: the last epoch is kept" in parts.notes


def test_too_few_images_for_validation() -> None:
    parts = split(halves(2, 6, given=False), ONCE, 0)
    assert parts.val is None and len(parts.train) == 8
    assert "too few images to hold some out for validation: the last epoch is kept" in parts.notes


def test_few_classes_without_a_split_are_split_by_image() -> None:
    parts = split(halves(4, 20, given=False), DataConfig(validation=0.2), 0)
    assert not parts.open_set
    assert parts.train.num_classes == 4 and parts.test is not None and parts.test.num_classes == 4
    assert (len(parts.train), len(parts.test), len(parts.val or [])) == (48, 20, 12)
    assert any(note.startswith("split by image (4 classes are too few") for note in parts.notes)
    shown = [part.images[row].tobytes() for part in (parts.train, parts.val, parts.test) for row in range(len(part))]
    assert len(set(shown)) == len(shown) == 80  # every image in one part alone
    # given by the data itself, the same halves stay
    assert split(halves(4, 20, given=True), DataConfig(), 0).open_set


def test_by_choice() -> None:
    by_image = split(halves(40, 8, given=True), DataConfig(split="images"), 0)
    assert not by_image.open_set and by_image.train.num_classes == 40
    shared = table([0, 0, 1, 1] * 6, ["train", "test"] * 12)
    with pytest.raises(ValueError, match="both trained on and tested"):
        split(shared, DataConfig(), 0)
    assert not split(shared, DataConfig(split="images"), 0).open_set
    assert len(split(shared, DataConfig(split="images", validation=0), 0).train) == 12  # its own split stays
    by_class = split(shared, DataConfig(split="classes", validation=0), 0)
    assert by_class.open_set and by_class.train.num_classes == by_class.test.num_classes == 1


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="no training rows, only test"):
        split(table([0, 0], ["test", "test"]), DataConfig(), 0)
    with pytest.raises(
        ConfigError, match="has no classes to learn from: put the images of each class into their own folder"
    ):
        split(table([-1, -1], ["test", "test"]), DataConfig(), 0)
    with pytest.raises(ConfigError, match="validation is a share"):
        split(halves(8, 2, given=True), DataConfig(validation=1.5), 0)


def test_without_test_rows() -> None:
    parts = split(table([0, 0, 1, 1, 2, 2, 3, 3] * 3, ["train"] * 24), ONCE, 0)
    assert parts.test is None and parts.val is not None
    assert any("the held-out rows are evaluated instead" in note for note in parts.notes)


@pytest.mark.parametrize("given", [True, False])
def test_all_classes_are_trained_on(given: bool) -> None:
    data = halves(30, 4, given)
    parts = split(data, DataConfig(split="all", folds=1), 0)
    assert parts.test is None and parts.val is None and len(parts.train) == 120 and parts.train.num_classes == 30
    assert parts.open_set
    assert any("no class is held out for testing: all 30 are for training" in note for note in parts.notes)
    assert any("there are no test data, so nothing will be evaluated" in note for note in parts.notes)
    # What is held out by choice, or fold by fold, is trained on otherwise.
    parts = split(data, DataConfig(split="all", validation=0.2), 0)
    assert parts.val is not None and parts.val.num_classes == 7 and parts.train.num_classes == 23
    parts = split(data, DataConfig(split="all"), 0)
    assert parts.folds == 3 and parts.train.num_classes == 30 and parts.val is None
    assert any("the held-out rows are evaluated instead" in note for note in parts.notes)
    # Also where the data say that none of them is for training.
    assert len(split(table([0, 0, 1, 1], ["test"] * 4), DataConfig(split="all"), 0).train) == 4


def test_test_data_elsewhere() -> None:
    """Without a split of its own all of the data is trained on; else its own training rows."""
    other = DataConfig(test="elsewhere", folds=1)
    parts = split(halves(30, 4, given=False), other, 0)
    assert parts.train.num_classes == 30 and parts.test is None
    assert not any("nothing will be measured" in note for note in parts.notes)
    parts = split(halves(30, 4, given=True), other, 0)
    assert parts.train.num_classes + parts.val.num_classes == 15
    elsewhere = halves(4, 2, given=True)
    assert replace(parts, elsewhere=elsewhere).test is elsewhere
    for kind in ("classes", "images"):
        with pytest.raises(ConfigError, match=f"other data to test on, but --split {kind} holds out test data"):
            split(halves(30, 4, given=False), replace(other, split=kind), 0)
