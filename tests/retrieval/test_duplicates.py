"""Near-identical images: pairs and groups against naive loops, leaks, tables and pages."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearfar.cli import main
from nearfar.data import SPLITS, Encoded, Pixels, Table
from nearfar.retrieval import duplicates
from nearfar.retrieval.duplicates import find_duplicates, near_pairs
from nearfar.retrieval.duplicates_page import write_page
from nearfar.retrieval.encoder import Encoder
from nearfar.retrieval.gallery import gallery_of, open_gallery
from nearfar.retrieval.index import RetrievalError
from tests.retrieval.making import embedder, photos, run, vectors


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))


def noise(count: int, seed: int = 0) -> np.ndarray:
    """Pictures that have nothing in common."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    return small.repeat(4, 1).repeat(4, 2)


def table(pixels: np.ndarray, labels: list[int], splits: list[str]) -> Table:
    ids = np.array([SPLITS.index(name) for name in splits], np.int8)
    return Table("made", np.array(labels), tuple(f"class {n}" for n in range(max(labels) + 1)), ids, Pixels(pixels))


def test_pairs_are_those_of_two_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "TILE", 7)
    x = vectors(40, 3)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    left, right, similarity = near_pairs(x, 0.8)
    expected = {(i, j): float(x[i] @ x[j]) for i in range(40) for j in range(i + 1, 40) if x[i] @ x[j] >= 0.8}
    assert dict(zip(zip(left.tolist(), right.tolist(), strict=True), similarity, strict=True)) == pytest.approx(
        expected
    )
    assert len(expected) > 10
    assert [len(part) for part in near_pairs(x[:0], 0.8)] == [0, 0, 0]


def test_groups_leaks_and_contradictions() -> None:
    pixels = noise(12)
    pixels[4] = pixels[0]  # a copy, in the test split, under another label
    pixels[7] = pixels[6]
    pixels[8] = (pixels[6].astype(int) + 1).clip(0, 255)  # nearly so
    labels = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    gallery = gallery_of(table(pixels, labels, ["train"] * 3 + ["test"] * 9), "made")
    encoder = Encoder(embedder(head=None, dimension=None))
    found = find_duplicates(encoder, gallery, 0.9999)
    assert [[member.image for member in group.members] for group in found.groups] == [
        ["made#0", "made#4"], ["made#6", "made#7", "made#8"]
    ]  # fmt: skip
    leak, other = found.groups
    assert leak.leak and leak.contradictory and not other.leak and not other.contradictory
    assert [member.split for member in leak.members] == ["train", "test"]
    assert [member.identical for member in other.members] == [True, True, False]
    assert other.members[0].nearest == "made#7" and other.members[0].similarity == pytest.approx(1)
    x = encoder.embed([pixels[n] for n in (6, 8)])
    assert other.members[2].similarity == pytest.approx(float(x[0] @ x[1]), abs=1e-5)
    assert found.leaks == [leak] and found.contradictions == [leak]
    assert (
        "12 images, 5 of them near-identical to another (similarity of at least 0.9999): 2 groups\n" in found.summary()
    )
    assert "with both training and test images: 1 group\n" in found.summary()
    assert find_duplicates(encoder, gallery, 1.0).groups[0] == leak  # equal vectors, whatever rounding makes of them


def test_a_chain_is_one_group_and_unreadable_images_are_counted() -> None:
    import io

    first, last = noise(2, seed=3)
    steps = [(first * (1 - w) + last * w).astype(np.uint8) for w in np.linspace(0, 0.5, 6)]
    encoded = []
    for picture in steps:
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "PNG")
        encoded.append(file.getvalue())
    encoded.append(b"no picture")
    n = len(encoded)
    made = Table("made", np.zeros(n, int), ("a",), np.zeros(n, np.int8), Encoded(encoded))
    encoder = Encoder(embedder(head=None, dimension=None), max_broken=0.5)
    x = encoder.embed(steps)
    products = x @ x.T
    neighbours = min(float(products[i, i + 1]) for i in range(5))
    assert products[0, 5] < neighbours  # the ends are alike only by what is between
    with pytest.warns(UserWarning, match="1 of 7 images are broken"):
        found = find_duplicates(encoder, gallery_of(made, "made"), (neighbours + float(products[0, 5])) / 2)
    assert [len(group.members) for group in found.groups] == [6] and found.broken == 1
    assert found.summary().endswith("images that cannot be read: 1")


def test_thresholds_that_make_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = gallery_of(table(noise(5), [0] * 5, ["train"] * 5), "made")
    encoder = Encoder(embedder(head=None, dimension=None))
    with pytest.raises(RetrievalError, match=r"above 0 and at most 1, not 1\.5"):
        find_duplicates(encoder, gallery, 1.5)
    monkeypatch.setattr(duplicates, "MOST_PAIRS", 3)
    with pytest.raises(RetrievalError, match="more than 3 pairs are near-identical at a threshold of"):
        find_duplicates(encoder, gallery, 0.01)


def test_tables_and_pages(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", classes=4, each=3)
    copy = folder / "pattern 3" / "copy.png"
    copy.write_bytes((folder / "pattern 0" / "000.png").read_bytes())
    gallery = open_gallery([folder])
    found = find_duplicates(Encoder(embedder(head=None, dimension=None)), gallery, 0.99999)
    assert len(found.leaks) == 1 and found.leaks[0].members[0].identical
    found.write_csv(tmp_path / "found.csv")
    with (tmp_path / "found.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == [str(folder / "pattern 0" / "000.png"), str(copy)]
    assert {row["split"] for row in rows} == {"train", "test"} and {row["leak"] for row in rows} == {"True"}
    page = write_page(found, gallery, tmp_path / "found.html").read_text(encoding="utf-8")
    assert "Leaks" in page and page.count("data:image/webp") == 2 and "train · pattern 0 · same file" in page
    none = find_duplicates(Encoder(embedder(head=None, dimension=None)), open_gallery([folder / "pattern 1"]), 1.0)
    assert "of at least 1): 0 groups" in none.summary()
    assert "Leaks" not in write_page(none, gallery, tmp_path / "none.html").read_text(encoding="utf-8")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = photos(tmp_path / "photos", classes=4, each=3)
    copy = folder / "pattern 3" / "copy.png"
    copy.write_bytes((folder / "pattern 0" / "000.png").read_bytes())
    monkeypatch.chdir(tmp_path)
    common = ["duplicates", str(folder), "--backbone", "convnet", "--threshold", "0.99999"]
    assert main([*common, "--csv", "found.csv"]) == 0
    said = capsys.readouterr().out
    assert f"leak: {folder / 'pattern 0' / '000.png'} (train) = {copy} (test)" in said
    assert (tmp_path / "duplicates.html").is_file() and (tmp_path / "found.csv").is_file()
    assert main([*common, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["leaks"] == 1
    made = run(tmp_path / "run", folder)
    assert main(["duplicates", str(folder), "--run", str(made.folder)]) == 2
    assert "set the similarity of near-identical images, such as --threshold 0.98" in capsys.readouterr().err
    assert main(["duplicates", str(folder), "--run", str(made.folder), "--threshold", "0.99999"]) == 0
    (tmp_path / "empty").mkdir()
    assert main(["duplicates", str(tmp_path / "empty")]) == 2
    assert "contains no images" in capsys.readouterr().err
