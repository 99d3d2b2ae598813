"""Every layout, on a small made copy."""

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

import nearfar.data
from nearfar.data import DifferentCountsWarning, LayoutError, Table
from nearfar.data.layouts import LAYOUTS
from tests.data.making import image, shade, text


def opened(path: Path, **options: str) -> Table:
    """Small copies differ from the official counts, and say so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DifferentCountsWarning)
        return nearfar.data.open(path, **options)


def names(table: Table) -> list[str]:
    return [table.label_name(row) for row in range(len(table))]


def splits(table: Table) -> list[str]:
    return [nearfar.data.SPLITS[i] for i in table.split_ids]


# --- CUB, Cars, SOP, In-Shop ------------------------------------------------------------------------------------------


def cub(root: Path) -> Path:
    text(root / "images.txt", "1 001.Auk/a.jpg\n2 100.Wren/b.jpg\n3 101.Owl/c.jpg\n4 001.Auk/d.jpg\n")
    text(root / "image_class_labels.txt", "1 1\n2 100\n3 101\n4 1\n")
    text(root / "classes.txt", "1 001.Auk\n100 100.Wren\n101 101.Owl\n")
    text(root / "train_test_split.txt", "1 0\n2 0\n3 1\n4 1\n")
    for value, name in enumerate(("001.Auk/a", "100.Wren/b", "101.Owl/c", "001.Auk/d")):
        image(root / "images" / f"{name}.jpg", value * 50)
    return root


def test_cub(tmp_path: Path) -> None:
    table = opened(cub(tmp_path))
    assert names(table) == ["001.Auk", "100.Wren", "101.Owl", "001.Auk"]
    assert splits(table) == ["train", "train", "test", "train"]
    assert table.labels.tolist() == [0, 1, 2, 0]
    assert [shade(path) for path in table.paths] == [0, 50, 100, 150]


def test_counts_that_differ_are_reported(tmp_path: Path) -> None:
    with pytest.warns(DifferentCountsWarning) as caught:
        table = nearfar.data.open(cub(tmp_path))
    assert len(caught) == 4
    assert "train has 3 images, the official CUB-200-2011 5,864 (-5,861)" in table.notes
    assert "test has 1 classes, the official CUB-200-2011 100 (-99)" in table.summary()


def shared_cub() -> Path | None:
    """The copy named by $NEARFAR_CUB, or shared/data/CUB_200_2011 beside the repository."""
    beside = Path(__file__).parents[2].parent / "shared" / "data" / "CUB_200_2011"
    path = Path(os.environ.get("NEARFAR_CUB", beside))
    return path if path.exists() else None


@pytest.mark.skipif(shared_cub() is None, reason="no copy of CUB-200-2011: set NEARFAR_CUB")
def test_the_real_cub_has_the_official_counts() -> None:
    path = shared_cub()
    assert path is not None
    table = nearfar.data.open(path)
    assert (len(table.split("train")), len(table.split("test"))) == (5864, 5924)
    assert table.split("train").labels.max() == 99 and table.split("test").num_classes == 100
    assert table.notes == ()
    assert nearfar.data.EvalTransform()(table.paths[0]).shape == (3, 224, 224)


def cars_annotations(path: Path, fields: list[str], rows: list[tuple[object, ...]], **more: object) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    array = np.zeros((1, len(rows)), [(name, object) for name in fields])
    for i, row in enumerate(rows):
        array[0, i] = row
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy_io.savemat(path, {"annotations": array, **more})


BOX = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2"]


def test_cars_old_packaging(tmp_path: Path) -> None:
    titles = np.array([f"Car {i}" for i in range(1, 197)], object)[None]
    rows = [(f"car_ims/00000{i}.jpg", 1, 2, 3, 4, c, i % 2) for i, c in enumerate((98, 99, 1), 1)]
    cars_annotations(tmp_path / "cars_annos.mat", ["relative_im_path", *BOX, "class", "test"], rows, class_names=titles)
    for i in range(1, 4):
        image(tmp_path / "car_ims" / f"00000{i}.jpg", 60 * i)
    table = opened(tmp_path)
    assert table.name == "Cars196" and names(table) == ["Car 98", "Car 99", "Car 1"]
    assert splits(table) == ["train", "test", "train"] and table.labels.tolist() == [1, 2, 0]
    assert [shade(path) for path in table.paths] == [60, 120, 180]


def test_cars_new_packaging_merges_both_original_splits(tmp_path: Path) -> None:
    for file, classes in (("cars_train_annos", (1, 196)), ("cars_test_annos_withlabels", (98, 99))):
        rows = [(1, 2, 3, 4, c, f"0000{i}.jpg") for i, c in enumerate(classes)]
        cars_annotations(tmp_path / "devkit" / f"{file}.mat", [*BOX, "class", "fname"], rows)
    for i, name in enumerate(("cars_train/00000", "cars_train/00001", "cars_test/00000", "cars_test/00001")):
        image(tmp_path / f"{name}.jpg", 40 * i)
    table = opened(tmp_path)
    assert names(table) == ["1", "196", "98", "99"] and splits(table) == ["train", "test", "train", "test"]
    assert [shade(path) for path in table.paths] == [0, 40, 80, 120]
    (tmp_path / "devkit" / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(LayoutError, match=r"has no cars_test_annos_withlabels.mat: the standard protocol"):
        opened(tmp_path)


def test_sop(tmp_path: Path) -> None:
    header = "image_id class_id super_class_id path\n"
    text(tmp_path / "Ebay_train.txt", header + "1 1 1 bicycle_final/a_0.JPG\n2 2 1 bicycle_final/b_0.JPG\n")
    text(tmp_path / "Ebay_test.txt", header + "3 11319 12 toaster_final/c_0.JPG\n")
    image(tmp_path / "toaster_final" / "c_0.JPG", 9)
    table = opened(tmp_path)
    assert splits(table) == ["train", "train", "test"] and names(table) == ["1", "2", "11319"]
    assert table.super_class is not None and table.super_class.tolist() == [0, 0, 1]
    assert table.names["super_class"] == ("bicycle", "toaster")
    assert shade(table.split("test").paths[0]) == 9


@pytest.mark.parametrize("folder", ["Img/img", "img_highres"])
def test_in_shop(tmp_path: Path, folder: str) -> None:
    rows = [("MEN/Tees/id_1/01_1_front", "id_1", "train"), ("WOMEN/Skirts/id_2/01_1_front", "id_2", "query")]
    rows.append(("WOMEN/Skirts/id_2/02_1_front", "id_2", "gallery"))
    listed = "".join(f"img/{name}.jpg   {item}   {status}\n" for name, item, status in rows)
    text(tmp_path / "Eval" / "list_eval_partition.txt", f"3\nimage_name item_id evaluation_status\n{listed}")
    for i, row in enumerate(rows):
        image(tmp_path / folder / f"{row[0]}.jpg", i * 70)
    table = opened(tmp_path)
    assert splits(table) == ["train", "query", "gallery"] and table.labels.tolist() == [0, 1, 1]
    assert table.split("query").labels.tolist() == table.split("gallery").labels.tolist()
    assert [shade(path) for path in table.paths] == [0, 70, 140]


# --- re-identification ------------------------------------------------------------------------------------------------


def test_market(tmp_path: Path) -> None:
    image(tmp_path / "bounding_box_train" / "0002_c1s1_000451_03.jpg")
    for name in ("-1_c1s1_000401_03", "0000_c6s1_000401_03", "0003_c3s1_000401_03"):
        image(tmp_path / "bounding_box_test" / f"{name}.jpg")
    image(tmp_path / "query" / "0003_c5s1_000151_01.jpg", 7)
    text(tmp_path / "query" / "Thumbs.db", "")
    table = opened(tmp_path)
    assert splits(table) == ["train", "query", "gallery", "gallery"]
    assert names(table) == ["0002", "0003", "0000", "0003"] and table.labels[0] == 0
    assert table.camera is not None and table.camera.tolist() == [1, 5, 6, 3]
    assert table.notes[0] == "1 junk boxes (person -1) are left out, as in the protocol"
    assert shade(table.split("query").paths[0]) == 7


@pytest.mark.parametrize(
    ("train", "test", "version"), [("train", "test", "V1"), ("mask_train_v2", "mask_test_v2", "V2")]
)
def test_msmt17(tmp_path: Path, train: str, test: str, version: str) -> None:
    lists = {
        "train": (train, "0000/0000_000_01_0303morning_0015_0.jpg 0"),
        "val": (train, "0000/0000_001_04_0303morning_0016_0.jpg 0"),
        "query": (test, "0000/0000_002_15_0303noon_0016_0.jpg 0"),
        "gallery": (test, "0000/0000_003_07_0303noon_0017_0.jpg 0"),
    }
    for i, (name, (folder, line)) in enumerate(lists.items()):
        text(tmp_path / f"list_{name}.txt", line + "\n")
        image(tmp_path / folder / line.split()[0], i * 30)
    table = opened(tmp_path)
    assert splits(table) == ["train", "train", "query", "gallery"]
    assert names(table) == ["train 0000", "train 0000", "test 0000", "test 0000"]  # test persons are others
    assert table.camera is not None and table.camera.tolist() == [1, 4, 15, 7]
    assert table.notes[0] == f"{version}; train includes the 1 images of list_val.txt"
    assert [shade(path) for path in table.paths] == [0, 30, 60, 90]


# --- faces ------------------------------------------------------------------------------------------------------------


def test_lfw(tmp_path: Path) -> None:
    people = {"Ann_A": 3, "Bo_B": 2, "Cy": 1}
    for person, count in people.items():
        for number in range(1, count + 1):
            image(tmp_path / "lfw" / person / f"{person}_{number:04d}.jpg")
    text(
        tmp_path / "pairs.txt",
        "2\t1\nAnn_A\t1\t3\nAnn_A\t2\tCy\t1\nBo_B\t1\t2\nBo_B\t2\tGone\t1\n",
    )
    table = opened(tmp_path)
    assert len(table) == 6 and table.num_classes == 3 and set(splits(table)) == {"test"}
    pairs = table.pairs["LFW"]
    found = [tuple(Path(table.paths[row]).stem for row in pair) for pair in zip(pairs.first, pairs.second, strict=True)]
    assert found == [("Ann_A_0001", "Ann_A_0003"), ("Ann_A_0002", "Cy_0001"), ("Bo_B_0001", "Bo_B_0002")]
    assert pairs.same.tolist() == [True, False, True] and pairs.fold.tolist() == [0, 0, 1]
    assert table.notes[0] == "1 pairs of pairs.txt name images that do not exist and are left out"
    text(tmp_path / "pairs.txt", "2\t1\nAnn_A\t1\t3\n")
    with pytest.raises(LayoutError, match="has 1 pairs, but its first line says 4"):
        opened(tmp_path)


def test_ytf(tmp_path: Path) -> None:
    for video, frames in {"Ann/0": 2, "Ann/1": 1, "Bo/0": 1}.items():
        for frame in range(frames):
            image(tmp_path / "aligned_images_DB" / video / f"aligned_{frame}.jpg")
    header = "split number, first name, second name, is same\n"
    text(tmp_path / "splits.txt", header + "1, Ann/0, Ann/1, 1, 1\n2, Ann/1, Bo/0, 0, 0\n")
    table = opened(tmp_path)
    assert names(table) == ["Ann", "Ann", "Ann", "Bo"]
    assert table.template is not None and table.template.tolist() == [0, 0, 1, 2]
    pairs = table.pairs["YTF"]
    assert pairs.of == "template" and (pairs.first.tolist(), pairs.second.tolist()) == ([0, 1], [1, 2])
    assert pairs.same.tolist() == [True, False] and pairs.fold.tolist() == [0, 1]


def test_cfp(tmp_path: Path) -> None:
    for person in ("001", "002"):
        for view in ("frontal", "profile"):
            image(tmp_path / "Data" / "Images" / person / view / "01.jpg")
    for letter, view in (("F", "frontal"), ("P", "profile")):
        listed = "".join(f"{i} ../Data/Images/00{i}/{view}/01.jpg\n" for i in (1, 2))
        text(tmp_path / "Protocol" / f"Pair_list_{letter}.txt", listed)
    for protocol in ("FF", "FP"):
        text(tmp_path / "Protocol" / "Split" / protocol / "01" / "same.txt", "1,1\n")
        text(tmp_path / "Protocol" / "Split" / protocol / "01" / "diff.txt", "1,2\n2,1\n")
    table = opened(tmp_path)
    assert names(table) == ["001", "002", "001", "002"] and table.columns["pose"].tolist() == [0, 0, 1, 1]
    frontal, profile = table.pairs["FF"], table.pairs["FP"]
    assert (frontal.first.tolist(), frontal.second.tolist()) == ([0, 0, 1], [0, 1, 0])
    assert (profile.first.tolist(), profile.second.tolist()) == ([0, 0, 1], [2, 3, 2])
    assert profile.same.tolist() == [True, False, False]
    assert all(Path(path).exists() for path in table.paths)
    text(tmp_path / "Protocol" / "Pair_list_F.txt", "1 ../../../etc/passwd\n")
    with pytest.raises(LayoutError, match="which is outside of it"):
        opened(tmp_path)


def test_agedb_with_its_list_of_pairs(tmp_path: Path) -> None:
    files = ["0_MariaCallas_35_f.jpg", "1_MariaCallas_60_f.jpg", "2_JohnDoe_20_m.jpg"]
    for name in files:
        image(tmp_path / name)
    text(tmp_path / "agedb_30_pair.txt", f"{files[0]} {files[1]} 1\n{files[0]} {files[2]} 0\n")
    table = opened(tmp_path)
    assert names(table) == ["MariaCallas", "MariaCallas", "JohnDoe"] and table.columns["age"].tolist() == [35, 60, 20]
    pairs = table.pairs["agedb_30_pair"]
    assert (pairs.first.tolist(), pairs.second.tolist(), pairs.same.tolist()) == ([0, 0], [1, 2], [True, False])


def test_lists_of_pairs(tmp_path: Path) -> None:
    for i in range(4):
        image(tmp_path / "aligned" / f"{i}.jpg")
    lines = [f"{i % 4}.jpg {(i + 1) % 4}.jpg {i % 2 or -1}" for i in range(20)]
    text(tmp_path / "cfp_fp_pair.txt", "\n".join(lines))
    table = opened(tmp_path)
    pairs = table.pairs["cfp_fp_pair"]
    assert table.labels.tolist() == [-1] * 4 and len(pairs) == 20
    assert pairs.fold.tolist() == [i // 2 for i in range(20)] and pairs.same.tolist() == [
        bool(i % 2) for i in range(20)
    ]


def test_ijb(tmp_path: Path) -> None:
    meta = tmp_path / "meta"
    text(meta / "ijbc_face_tid_mid.txt", "1.jpg 10 100\n2.jpg 10 101\n3.jpg 20 102\n")
    text(meta / "ijbc_template_pair_label.txt", "10 20 0\n20 10 1\n")
    marks = " ".join(str(i) for i in range(10))
    text(meta / "ijbc_name_5pts_score.txt", "".join(f"{i}.jpg {marks} 0.{i}\n" for i in (1, 2, 3)))
    text(meta / "ijbc_1N_gallery_G1.csv", "TEMPLATE_ID,SUBJECT_ID,FILENAME\n10,7,img/a.jpg\n")
    text(meta / "ijbc_1N_probe_mixed.csv", "TEMPLATE_ID,SUBJECT_ID,FILENAME\n20,9,img/b.jpg\n")
    image(tmp_path / "loose_crop" / "2.jpg", 33)
    table = opened(tmp_path)
    assert table.name == "IJB-C" and names(table) == ["7", "7", "9"]
    assert table.template is not None and table.template.tolist() == [10, 10, 20]
    assert table.media is not None and table.media.tolist() == [100, 101, 102]
    pairs = table.pairs["IJB-C"]
    assert pairs.of == "template" and pairs.first.tolist() == [10, 20] and pairs.same.tolist() == [False, True]
    assert table.columns["landmarks"][0].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert table.columns["score"].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert [table.names["role"][i] for i in table.columns["role"]] == ["gallery G1", "gallery G1", "probe"]
    assert shade(table.paths[1]) == 33


def test_megaface_package_of_insightface(tmp_path: Path) -> None:
    text(tmp_path / "facescrub_lst", "data/facescrub_images/Ann/Ann_1.png\ndata/facescrub_images/Ann/Ann_2.png\n")
    text(tmp_path / "megaface_lst", "data/megaface_images/12/3@N00/4_0.jpg\ndata/megaface_images/12/3@N00/5_0.jpg\n")
    text(tmp_path / "facescrub_noises.txt", "# names\nAnn_2\n")
    text(tmp_path / "megaface_noises.txt", "12/3@N00/5_0.jpg\n")
    image(tmp_path / "facescrub_images" / "Ann" / "Ann_1.png", 12)
    image(tmp_path / "megaface_images" / "12" / "3@N00" / "4_0.jpg", 34)
    table = opened(tmp_path)
    assert splits(table) == ["query", "query", "gallery", "gallery"]
    assert names(table) == ["Ann", "Ann", "", ""] and table.columns["noise"].tolist() == [False, True, False, True]
    cleaned = table.select(~table.columns["noise"])
    assert [shade(path) for path in cleaned.paths] == [12, 34]


def test_megaface_development_kit(tmp_path: Path) -> None:
    lists = tmp_path / "devkit" / "templatelists"
    text(lists / "facescrub_features_list.json", json.dumps({"id": ["Ann"], "path": ["Ann/Ann_1.png"]}))
    text(lists / "megaface_features_list.json_10_1", json.dumps({"path": ["1/2/3.jpg"]}))
    text(lists / "megaface_features_list.json_1000000_1", json.dumps({"path": ["1/2/3.jpg", "1/2/4.jpg"]}))
    image(tmp_path / "facescrub" / "Ann" / "Ann_1.png")
    image(tmp_path / "FlickrFinal2" / "1" / "2" / "3.jpg", 5)
    table = opened(tmp_path)
    assert splits(table) == ["query", "gallery", "gallery"] and shade(table.paths[1]) == 5


# --- folders ----------------------------------------------------------------------------------------------------------


def test_class_folders_are_halved(tmp_path: Path) -> None:
    for i, name in enumerate(("b/1.jpg", "a/1.png", "a/2.webp.jpg", "c/x.jpeg", "c/.hidden.jpg", "c/notes.txt")):
        image(tmp_path / name, i) if "notes" not in name else text(tmp_path / name, "")
    table = opened(tmp_path)
    assert names(table) == ["a", "a", "b", "c"] and splits(table) == ["train", "train", "train", "test"]
    assert table.notes == ("no split is given: the first 2 classes in sorted order are train, the other 1 test",)


def test_split_folders(tmp_path: Path) -> None:
    for name in ("train/a/1", "train/b/1", "Validation/c/1", "test/a/2", "test/d/1"):
        image(tmp_path / f"{name}.jpg")
    table = opened(tmp_path)
    assert sorted(zip(splits(table), names(table), strict=True)) == [
        ("test", "a"), ("test", "d"), ("train", "a"), ("train", "b"), ("val", "c"),
    ]  # fmt: skip
    assert table.notes == ("1 classes of train are in test too: this is not a zero-shot split",)


def test_folders_of_folders_have_super_classes(tmp_path: Path) -> None:
    for name in ("cats/lion/1", "cats/lynx/1", "dogs/wolf/1"):
        image(tmp_path / f"{name}.jpg")
    table = opened(tmp_path)
    assert names(table) == ["cats/lion", "cats/lynx", "dogs/wolf"]
    assert table.super_class is not None and table.super_class.tolist() == [0, 0, 1]


def test_loose_images_have_no_label(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    table = opened(tmp_path)
    assert table.labels.tolist() == [-1] and splits(table) == ["test"]
    image(tmp_path / "x" / "b.jpg")
    assert opened(tmp_path).notes[1] == "1 images are outside of the class folders and have no label"


# --- what is common to all --------------------------------------------------------------------------------------------


def test_a_folder_around_a_data_set_will_do(tmp_path: Path) -> None:
    cub(tmp_path / "download" / "CUB_200_2011")
    assert opened(tmp_path / "download").name == "CUB-200-2011"
    assert opened(tmp_path / "download" / "CUB_200_2011", layout="folders").num_classes == 3


def test_relative_paths_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cub(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    assert [shade(path) for path in opened(Path(".")).paths] == [0, 50, 100, 150]


@pytest.mark.parametrize(
    "name", ["../../secret.jpg", "/etc/passwd", "x/../../../y.jpg", "..\\..\\y.jpg", "C:/x.jpg", "a\0b"]
)
def test_lists_cannot_lead_out_of_the_data_set(tmp_path: Path, name: str) -> None:
    root = cub(tmp_path / "cub")
    text(root / "images.txt", f"1 {name}\n")
    with pytest.raises(LayoutError, match="which is outside of it"):
        opened(root)


def test_paths_inside_are_fine_however_written(tmp_path: Path) -> None:
    root = cub(tmp_path / "cub")
    inside = root / "images" / "001.Auk" / "d.jpg"
    text(root / "images.txt", f"1 001.Auk/../001.Auk/a.jpg\n2 {inside}\n3 101.Owl/c..jpg\n")
    assert opened(root).paths[:2] == [str(root / "images" / "001.Auk" / "a.jpg"), str(inside)]


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no .*nowhere: give the path of a data set, or 'glyphs'"):
        nearfar.data.open(tmp_path / "nowhere")
    with pytest.raises(LayoutError, match="contains no images"):
        nearfar.data.open(tmp_path)
    with pytest.raises(ValueError, match="there is no layout 'cubs': did you mean cub"):
        nearfar.data.open(tmp_path, layout="cubs")
    with pytest.raises(LayoutError, match="does not have the files of the layout cub"):
        nearfar.data.open(tmp_path, layout="cub")
    with pytest.raises(LayoutError, match=r"notes.txt is not a known data set file .*: give a folder of images"):
        nearfar.data.open(text(tmp_path / "notes.txt", "hello"))
    with pytest.raises(LayoutError, match=r"line 1 of .*images.txt has 1 fields instead of 2"):
        opened(text(cub(tmp_path / "c") / "images.txt", "1\n").parent)
    text(cub(tmp_path / "d") / "image_class_labels.txt", "2 1\n3 1\n4 1\n")
    with pytest.raises(LayoutError, match=r"1 images of .* have no label"):
        opened(tmp_path / "d")


def test_layouts_have_different_names() -> None:
    assert len({layout.name for layout in LAYOUTS}) == len(LAYOUTS)
