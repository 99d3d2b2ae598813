"""Data sets that are not what their layouts say: the error names the file, and is one for users."""

import io
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import nearfar.data
from nearfar.data.parsing import LayoutError
from nearfar.errors import NearfarError


def npz(**arrays: object) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


# Files of small data sets of each kind, none with an image: those are opened later.
SETS: dict[str, Mapping[str, str | bytes]] = {
    "cub": {"images.txt": "1 a/1.jpg\n2 b/2.jpg\n", "image_class_labels.txt": "1 1\n2 150\n", "images/x": ""},
    "sop": {"Ebay_train.txt": "1 1 1 a_final/a.JPG\n", "Ebay_test.txt": "2 11319 12 b_final/b.JPG\n"},
    "in-shop": {"list_eval_partition.txt": "1\nimage_name item_id status\nimg/a.jpg id_1 train\n", "img/x": ""},
    "msmt17": {
        **{f"list_{part}.txt": "0/0_0_01_x.jpg 0\n" for part in ("train", "query", "gallery")},
        "train/x": "",
        "test/x": "",
    },
    "lfw": {"pairs.txt": "1 1\nAnn 1 2\nAnn 2 Bo 1\n", "Ann/Ann_0001.jpg": "", "Bo/Bo_0001.jpg": ""},
    "cfp": {
        **{f"Protocol/Pair_list_{view}.txt": "1 ../Data/1/x/1.jpg\n2 ../Data/2/x/1.jpg\n" for view in "FP"},
        **{f"Protocol/Split/{p}/01/{kind}.txt": "1,2\n" for p in ("FF", "FP") for kind in ("same", "diff")},
    },
    "ijb": {
        "meta/ijbc_face_tid_mid.txt": "1.jpg 1 1\n2.jpg 2 2\n",
        "meta/ijbc_name_5pts_score.txt": "".join(f"{i}.jpg {'1.5 ' * 10}0.9\n" for i in (1, 2)),
        "meta/ijbc_template_pair_label.txt": "1 2 0\n",
        "meta/ijbc_1N_gallery_G1.csv": "TEMPLATE_ID,SUBJECT_ID\n1,7\n",
    },
    "megaface": {
        "facescrub_features_list.json": json.dumps({"path": ["a/1.jpg"]}),
        "megaface_features_list.json_1_1": json.dumps({"path": ["1/2/3.jpg"]}),
        "facescrub/x": "",
        "megaface/x": "",
    },
    "recordio": {"train.rec": bytes(64), "train.idx": "0\t0\n1\t32\n"},
    "hugging-face": {
        "dataset_dict.json": json.dumps({"splits": ["train"]}),
        "train/state.json": json.dumps({"_data_files": [{"filename": "data.arrow"}]}),
        "train/dataset_info.json": json.dumps({"features": {"image": {"_type": "Image"}}}),
        "train/data.arrow": bytes(64),
    },
    "csv": {"x.csv": "path,label,split\na.jpg,1,train\nb.jpg,2,test\n"},
    "arrays": {"x.npz": npz(features=np.zeros((4, 2), np.float32), labels=np.arange(4))},
}

RUBBISH = random.Random(0).randbytes(300)
HOW: tuple[Callable[[bytes], bytes], ...] = (
    lambda old: b"",
    lambda old: RUBBISH,
    lambda old: old[: len(old) // 2],
    lambda old: old[len(old) // 3 :],
    lambda old: b"neither here nor there\n",
    lambda old: b"[1, 2]",
    lambda old: b"{}",
    lambda old: b'{"splits": [1], "path": 3, "_data_files": 4, "features": [2]}',
    lambda old: b'{"splits": 1, "_data_files": []}',
    lambda old: old + b"a b c d e f g h i j k l m\n",
    lambda old: old + b"a,b,c\n",
    lambda old: old.replace(b"1", b"x"),
    lambda old: old.replace(b"0", b"99999"),
    lambda old: old.replace(b"/", b"_"),
)


def written(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root / next(iter(files)) if len(files) == 1 else root


@pytest.mark.parametrize("name", SETS)
@pytest.mark.filterwarnings("ignore::nearfar.data.opening.DifferentCountsWarning")
def test_damage_is_never_a_bug(name: str, tmp_path: Path) -> None:
    """It is opened all the same, or refused in words of ours, or of the system about a file."""
    place, refused = written(tmp_path, SETS[name]), 0
    for file in SETS[name]:
        before = (tmp_path / file).read_bytes()
        for how in HOW:
            (tmp_path / file).write_bytes(how(before))
            try:
                nearfar.data.open(place)
            except NearfarError as error:
                refused += 1
                assert str(tmp_path) in str(error) or "Pair_list" in str(error)  # noqa: PT017
            except OSError as error:
                assert error.filename is not None  # noqa: PT017
        (tmp_path / file).write_bytes(before)
    assert refused >= 4


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        (
            "cub",
            "image_class_labels.txt",
            "1 one\n",
            r"image_class_labels\.txt has 'one' instead of a whole number",
        ),
        ("sop", "Ebay_train.txt", "1 x 1 a.JPG\n", r"Ebay_train\.txt has 'x' instead of a whole number"),
        ("msmt17", "list_query.txt", "0/0_0_01_x.jpg ?\n", r"list_query\.txt has '\?' instead of a whole number"),
        ("lfw", "pairs.txt", "1 1\nAnn 1 x\nAnn 2 Bo 1\n", r"pairs\.txt has 'x' instead of a whole number"),
        (
            "cfp",
            "Protocol/Split/FF/01/same.txt",
            "1,9\n",
            r"a pair contains image '9', which Pair_list_F\.txt does not",
        ),
        ("ijb", "meta/ijbc_template_pair_label.txt", "1 2\n", r"pair_label\.txt must have lines of two templates"),
        ("ijb", "meta/ijbc_template_pair_label.txt", "1 2 x\n", r"pair_label\.txt must be a table of whole numbers"),
        ("megaface", "facescrub_features_list.json", "{", r"facescrub_features_list\.json is not valid JSON"),
        ("recordio", "train.rec", "", r"train\.rec is empty"),
        ("hugging-face", "dataset_dict.json", "[]", r"dataset_dict\.json must hold a JSON object"),
        ("hugging-face", "dataset_dict.json", "{}", r"dataset_dict\.json does not list the splits"),
        ("hugging-face", "train/state.json", "{}", r"state\.json does not list the files of the data"),
        ("hugging-face", "train/data.arrow", "no", r"data\.arrow is not a valid Arrow file"),
    ],
)
def test_it_is_said_what_is_wrong(name: str, file: str, content: str, message: str, tmp_path: Path) -> None:
    place = written(tmp_path, {**SETS[name], file: content})
    with pytest.raises(LayoutError, match=message):
        nearfar.data.open(place)


def test_a_mat_file_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("scipy.io")
    written(tmp_path, {"cars_annos.mat": "rubbish" * 99, "car_ims/x": ""})
    with pytest.raises(LayoutError, match=r"cars_annos\.mat is not a valid \.mat file"):
        nearfar.data.open(tmp_path)
