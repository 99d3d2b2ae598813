"""Tables: selecting, splitting, numbering, folds."""

import pickle

import numpy as np
import pytest

from nearfar.data import Files, Pairs, Table
from nearfar.data.tables import number_classes, split_column


def table(splits: list[str], labels: list[int], **more: object) -> Table:
    names = tuple(f"class {i}" for i in range(max(labels) + 1))
    files = Files("/data", [f"{i}.jpg" for i in range(len(labels))])
    return Table("made", np.array(labels), names, split_column(splits), files, **more)


def four() -> Table:
    pairs = Pairs(np.array([0, 1, 2]), np.array([1, 3, 3]), np.array([True, False, True]), np.array([0, 0, 1]))
    return table(
        ["train", "train", "test", "test"],
        [0, 1, 2, 2],
        columns={"camera": np.array([5, 6, 7, 8])},
        pairs={"p": pairs},
        notes=("a note",),
    )


def test_a_split_keeps_every_column_and_the_class_ids() -> None:
    test = four().split("test")
    assert test.labels.tolist() == [2, 2] and test.num_classes == 1 and test.classes.tolist() == [2]
    assert test.paths == ["/data/2.jpg", "/data/3.jpg"]
    assert test.camera is not None and test.camera.tolist() == [7, 8]
    assert test.label_name(0) == "class 2"
    assert test.split_names == ("test",)


def test_pairs_follow_their_rows() -> None:
    kept = four().select([3, 1, 2]).pairs["p"]
    assert (kept.first.tolist(), kept.second.tolist()) == ([1, 2], [0, 0])
    assert (kept.same.tolist(), kept.fold.tolist()) == ([False, True], [0, 1])


def test_pairs_of_templates_follow_their_templates() -> None:
    pairs = Pairs(np.array([10, 10]), np.array([20, 30]), np.array([True, False]), np.zeros(2, np.int64), of="template")
    whole = table(["test"] * 3, [0, 0, 1], columns={"template": np.array([10, 20, 30])}, pairs={"t": pairs})
    kept = whole[:2].pairs["t"]
    assert (kept.first.tolist(), kept.second.tolist(), kept.of) == ([10], [20], "template")


@pytest.mark.parametrize("rows", [[1, 3], np.array([False, True, False, True]), slice(1, 4, 2), np.array([1, -1])])
def test_rows_are_chosen_by_mask_indices_or_slice(rows: object) -> None:
    assert four().select(rows).paths == ["/data/1.jpg", "/data/3.jpg"]
    assert len(four().select([])) == 0


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (np.array([True]), ValueError, r"a mask of shape \(1,\) cannot select from 4 rows"),
        (np.array([4]), IndexError, "rows 4 to 4 are not all in a table of 4"),
        (np.array([0.5]), TypeError, "boolean mask, integer indices or a slice, not float64"),
    ],
)
def test_rows_that_cannot_be_chosen(rows: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        four().select(rows)


def test_a_memory_mapped_column_stays_mapped(tmp_path: object) -> None:
    np.save(f"{tmp_path}/x.npy", np.eye(4, dtype=np.float32))
    features = np.load(f"{tmp_path}/x.npy", mmap_mode="r")
    whole = table(["train", "train", "test", "test"], [0, 0, 1, 1], columns={"features": features})
    assert isinstance(whole.split("test").features, np.memmap)
    assert whole.split("test").features.tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]


def test_folds_share_no_class_and_cover_all() -> None:
    whole = table(["train"] * 14 + ["test"], [i // 2 for i in range(14)] + [7])
    held = []
    for fold in whole.folds(3):
        train, val = fold.split("train"), fold.split("val")
        assert not set(train.paths) & set(val.paths) and len(fold) == 14
        assert sorted(set(train.labels.tolist())) == list(range(train.num_classes))  # as class-level losses need
        names = {fold.label_names[i] for i in val.classes}
        assert not names & {fold.label_names[i] for i in train.classes}
        held.append(sorted(names))
    assert held == [["class 0", "class 1", "class 2"], ["class 3", "class 4"], ["class 5", "class 6"]]
    shuffled = [sorted(f.label_names[i] for i in f.split("val").classes) for f in whole.folds(3, seed=1)]
    assert shuffled != held and sorted(map(len, shuffled)) == sorted(map(len, held))
    with pytest.raises(ValueError, match="k=8 folds of 7 training classes"):
        next(whole.folds(8))


def test_training_classes_are_numbered_first_and_numbers_as_numbers() -> None:
    labels, names = number_classes([10, 9, 100, 9, -1], split_column(["train", "test", "train", "test", "test"]), (-1,))
    assert names == ("10", "100", "9") and labels.tolist() == [0, 2, 1, 2, -1]


def test_compact_drops_classes_without_rows() -> None:
    small = four().select([1, 3]).compact()
    assert small.labels.tolist() == [0, 1] and small.label_names == ("class 1", "class 2")
    unlabelled = table(["train", "test"], [0, 0]).select([0, 1])
    assert np.array_equal(unlabelled.compact().labels, [0, 0])


def test_the_summary_tells_all() -> None:
    summary = four().summary()
    assert summary.splitlines()[0] == "made: 4 images, 3 classes"
    for part in (
        "train",
        "2 images",
        "(2 each)",
        "(1 each)",
        "camera: 4 values",
        "pairs 'p': 3, 2 the same",
        "note: a note",
    ):
        assert part in summary


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: four().split("tset"), "there is no split 'tset': the splits are train, val"),
        (lambda: four().split("query"), "made has no query rows, only train and test"),
        (lambda: table(["train"], [0, 0]), "columns of made differ in length"),
        (lambda: split_column(["train", "dev"]), "there is no split 'dev'"),
        (lambda: Table("x", np.array([1]), ("a",), split_column(["test"]), Files("/", ["a"])), "must be -1 or index"),
        (lambda: Table("x", np.array([0]), ("a",), split_column(["test"])), "neither images nor features"),
        (lambda: Pairs(np.zeros(1), np.zeros(2), np.zeros(2), np.zeros(2)), "one value per pair"),
    ],
)
def test_what_is_wrong_is_said(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_paths_need_files() -> None:
    features = Table("x", np.array([0]), ("a",), split_column(["test"]), columns={"features": np.zeros((1, 2))})
    with pytest.raises(ValueError, match=r"x has no images, only features: use table.features"):
        _ = features.paths


def test_tables_travel_to_other_processes() -> None:
    again = pickle.loads(pickle.dumps(four()))
    assert again.paths == four().paths and again.camera.tolist() == [5, 6, 7, 8]
    with pytest.raises(TypeError):
        again.columns["camera"] = 1


def test_names_of_any_letters_are_kept() -> None:
    names = ["größe/ä.jpg", "", "日本/１.jpg", "bad\udcff.jpg"]
    files = Files("/r", names)
    assert [files.name(i) for i in range(4)] == names
    assert [files.select(np.array([3, 0])).name(i) for i in range(2)] == [names[3], names[0]]
    assert len(Files("/r", [])) == 0
