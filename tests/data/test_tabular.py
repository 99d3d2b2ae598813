"""CSV, Parquet, Hugging Face data sets and numpy arrays."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import nearfar.data
from nearfar.data import LayoutError
from tests.data.making import encoded, image, shade, text

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def splits(table: nearfar.data.Table) -> list[str]:
    return [nearfar.data.SPLITS[i] for i in table.split_ids]


# --- CSV --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "mark"), [("csv", ","), ("tsv", "\t")])
def test_csv(tmp_path: Path, ending: str, mark: str) -> None:
    rows = ["path,label,split,camera,super_class", "im/a.jpg,cat,train,c1,pet", 'im/b.jpg,"dog",Validation,c2,pet']
    text(tmp_path / f"list.{ending}", "\ufeff" + "\n".join([*rows, "im/c.jpg,,test,c1,wild"]).replace(",", mark))
    for i, name in enumerate("abc"):
        image(tmp_path / "im" / f"{name}.jpg", 40 * i)
    table = nearfar.data.open(tmp_path / f"list.{ending}")
    assert splits(table) == ["train", "val", "test"] and table.labels.tolist() == [0, 1, -1]
    assert table.label_names == ("cat", "dog") and table.camera is not None and table.camera.tolist() == [0, 1, 0]
    assert table.names["super_class"] == ("pet", "wild")
    assert [shade(path) for path in table.paths] == [0, 40, 80]


def test_csv_as_spreadsheets_write_it(tmp_path: Path) -> None:
    image(tmp_path / "ä,\n1.png", 70)
    text(tmp_path / "x.csv", 'Path;Label;Split\n"ä,\n1.png";cat;train\n\nb.png;dog, wild;test\n')
    table = nearfar.data.open(tmp_path / "x.csv")
    assert table.label_names == ("cat", "dog, wild") and splits(table) == ["train", "test"]
    assert shade(table.paths[0]) == 70


def test_csv_of_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes("path,label\nä.jpg,1\n".encode("latin-1"))
    with pytest.raises(LayoutError, match=r"x\.csv is not UTF-8 text \(byte 11\): save it as UTF-8"):
        nearfar.data.open(tmp_path / "x.csv")


def test_csv_without_split_is_halved(tmp_path: Path) -> None:
    text(tmp_path / "x.csv", "image,class\na.jpg,3\nb.jpg,20\nc.jpg,1\nd.jpg,20\n")
    table = nearfar.data.open(tmp_path / "x.csv")
    assert splits(table) == ["train", "test", "train", "test"] and table.label_names == ("1", "3", "20")
    assert "no split is given" in table.notes[0]


def test_csv_with_flags_of_query_and_gallery(tmp_path: Path) -> None:
    lines = ["path,label,split,is_query,is_gallery", "a,0,train,,", "b,1,validation,True,False", "c,1,validation,0,1"]
    text(tmp_path / "x.csv", "\n".join([*lines, "d,1,validation,1,1"]))
    assert splits(nearfar.data.open(tmp_path / "x.csv")) == ["train", "query", "gallery", "val"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name,label\na,b\n", "has the columns name, label, but none for the image"),
        ("path,colour\na,b\n", "has the columns path, colour, but none for the label"),
        ("path,label\na\n", "line 2 of .* has 1 fields, but the header has 2"),
        ("path,label,split\na,b,later\n", "has the split 'later'"),
        ("path,label\n../a.jpg,b\n", "which is outside of it"),
        ("path,label\n", "has no images"),
        ("", "none for the image"),
        ("path,label,Label\na,b,c\n", "two columns of the same name: path, label, label"),
        ('path,label\n"a\nb",1\nc\n', "line 4 of .* has 1 fields, but the header has 2"),
        ("path,label\n" + "a" * 200_000 + ",b\n", "cannot be read as a table: field larger"),
    ],
)
def test_bad_csv(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        nearfar.data.open(text(tmp_path / "x.csv", content))


# --- Parquet and Hugging Face -----------------------------------------------------------------------------------------

GREYS = [10, 60, 110, 160]
RECORDS = [{"bytes": encoded(value), "path": f"{value}.jpg"} for value in GREYS]


def arrow(image_column: list[object], labels: list[object] = (0, 1, 2, 2)) -> object:  # type: ignore[assignment]
    return pa.table({"image": image_column, "label": list(labels)})


@pytest.mark.parametrize("kind", ["paths", "bytes", "records"])
def test_parquet(tmp_path: Path, kind: str) -> None:
    for value in GREYS:
        image(tmp_path / f"{value}.jpg", value)
    column = {
        "paths": [f"{value}.jpg" for value in GREYS],
        "bytes": [encoded(value) for value in GREYS],
        "records": RECORDS,
    }[kind]
    parquet.write_table(arrow(column), tmp_path / "x.parquet")
    table = nearfar.data.open(tmp_path / "x.parquet")
    assert splits(table) == ["train", "train", "test", "test"] and table.labels.tolist() == [0, 1, 2, 2]
    assert [shade(table.images[i]) for i in range(4)] == GREYS
    assert shade(table.split("test").images[1]) == 160


FEATURES = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog", "emu"]}}


def save_to_disk(folder: Path, table: object, features: object = FEATURES) -> None:
    """As the datasets library lays it out: Arrow streams, state.json, dataset_info.json."""
    folder.mkdir(parents=True)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table, max_chunksize=2)
    text(
        folder / "state.json", json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": None})
    )
    text(folder / "dataset_info.json", json.dumps({"features": features}))


def test_hugging_face_saved(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "set", arrow(RECORDS))
    table = nearfar.data.open(tmp_path / "set")
    assert table.label_names == ("cat", "dog", "emu") and splits(table) == ["train", "train", "test", "test"]
    assert [shade(table.images[i]) for i in range(4)] == GREYS


def test_mapped_images_are_not_sent_to_other_processes(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8).tobytes()
    save_to_disk(tmp_path / "set", arrow([{"bytes": noise, "path": "x"}] * 4))
    table = nearfar.data.open(tmp_path / "set").split("test")
    sent = pickle.dumps(table)
    assert len(sent) < 20_000
    assert pickle.loads(sent).images[1] == table.images[1] == noise


def test_hugging_face_saved_with_splits(tmp_path: Path) -> None:
    root = tmp_path / "sets"
    features = {"photo": {"_type": "Image"}, "species": {"_type": "ClassLabel", "names": ["cat", "dog", "emu"]}}
    save_to_disk(root / "train", pa.table({"photo": RECORDS[:3], "species": [0, 0, 1]}), features)
    save_to_disk(root / "validation", pa.table({"photo": RECORDS[3:], "species": [2]}), features)
    text(root / "dataset_dict.json", json.dumps({"splits": ["train", "validation"]}))
    table = nearfar.data.open(root)
    assert splits(table) == ["train", "train", "train", "val"] and table.label_names == ("cat", "dog", "emu")
    assert shade(table.split("val").images[0]) == 160


def test_hugging_face_from_the_hub(tmp_path: Path) -> None:
    metadata = {b"huggingface": json.dumps({"info": {"features": FEATURES}}).encode()}
    for name, rows in (
        ("train-00000-of-00002", (0, 1)),
        ("train-00001-of-00002", (1, 2)),
        ("test-00000-of-00001", (2, 4)),
    ):
        shard = arrow(RECORDS).slice(rows[0], rows[1] - rows[0]).replace_schema_metadata(metadata)
        (tmp_path / "data").mkdir(exist_ok=True)
        parquet.write_table(shard, tmp_path / "data" / f"{name}.parquet")
    table = nearfar.data.open(tmp_path)
    assert splits(table) == ["train", "train", "test", "test"]
    assert [table.label_name(i) for i in range(4)] == ["cat", "dog", "emu", "emu"]
    assert [shade(table.images[i]) for i in range(4)] == GREYS


def test_hugging_face_paths_stay_inside(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "set", arrow([{"bytes": None, "path": "../../x.jpg"}] * 4))
    with pytest.raises(LayoutError, match=r"which is outside of it|one kind"):
        nearfar.data.open(tmp_path / "set")
    state = {"_data_files": [{"filename": "../other.arrow"}]}
    text(tmp_path / "set" / "state.json", json.dumps(state))
    with pytest.raises(LayoutError, match="which is outside of it"):
        nearfar.data.open(tmp_path / "set")
    text(tmp_path / "set" / "dataset_dict.json", json.dumps({"splits": ["../../elsewhere"]}))
    with pytest.raises(LayoutError, match="which is outside of it"):
        nearfar.data.open(tmp_path / "set")
    (tmp_path / "set" / "dataset_dict.json").unlink()
    text(tmp_path / "set" / "state.json", json.dumps({"_data_files": [], "_indices_data_files": [{"filename": "i"}]}))
    with pytest.raises(LayoutError, match="call flatten_indices"):
        nearfar.data.open(tmp_path / "set")


# --- numpy ------------------------------------------------------------------------------------------------------------

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([5, 5, 7, 9])


def test_npz_of_features(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=X, labels=Y, splits=np.array(["train", "train", "query", "gallery"]))
    table = nearfar.data.open(tmp_path / "x.npz")
    assert splits(table) == ["train", "train", "query", "gallery"] and table.labels.tolist() == [0, 0, 1, 2]
    assert table.images is None and np.array_equal(table.split("query").features, X[2:3])
    assert "4 feature vectors, 3 classes" in table.summary()


@pytest.mark.parametrize("names", [("features", "labels"), ("birds", "birds_labels"), ("birds", "labels")])
def test_npy_of_features_is_mapped(tmp_path: Path, names: tuple[str, str]) -> None:
    np.save(tmp_path / f"{names[0]}.npy", X)
    np.save(tmp_path / f"{names[1]}.npy", Y)
    table = nearfar.data.open(tmp_path if names[0] == "features" else tmp_path / "birds.npy")
    assert splits(table) == ["train", "train", "train", "test"] and isinstance(table.features, np.memmap)


def test_arrays_of_pixels(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.stack([np.full((5, 4, 3), i * 50, np.uint8) for i in range(4)]), labels=Y)
    table = nearfar.data.open(tmp_path / "x.npz")
    assert [shade(table.split("train").images[i]) for i in range(3)] == [0, 50, 100]


def test_features_without_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    table = nearfar.data.open(tmp_path / "x.npy")
    assert table.labels.tolist() == [-1] * 4 and table.notes == ("no labels",)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"values": X}, "has the arrays values, but none of features"),
        ({"features": X, "labels": Y[:2]}, r"labels of .* has the shape \(2,\), but there are 4 rows"),
        ({"features": X, "labels": X[:, 0]}, "labels of .* are float32: save class ids as integers"),
        ({"features": X.astype(int), "labels": Y}, r"features of .* is int64 \(4, 3\): features must be floats"),
        ({"features": X, "labels": Y, "splits": np.array(["x"] * 4)}, "has the split .*x.*: it must be train"),
        ({"features": np.array([{}, {}, {}, {}]), "labels": Y}, "holds pickled objects, which are refused"),
    ],
)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(LayoutError, match=message):
        nearfar.data.open(tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.parquet"])
@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04junk"])
def test_damaged_files(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LayoutError, match=rf"{name} is (damaged|not a valid)"):
        nearfar.data.open(tmp_path / name)
