"""The report of a run: what it says, of which rows, and that names cannot break it."""

import dataclasses
import json
import re

import numpy as np
import pytest

from nearfar.data import SPLITS
from nearfar.foundation.run_folder import RunFolder
from nearfar.report import layout, measured
from nearfar.report.boundaries import boundary_of_run
from nearfar.report.run import run_page, write_run_report
from tests.report.making import HOSTILE, embeddings, run_folder, table, with_broken


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run_folder(tmp_path_factory.mktemp("runs") / "made-circle-1")


@pytest.fixture(scope="module")
def page(folder) -> str:
    made = table()
    path = write_run_report(folder, embeddings(made.labels), made)
    assert path == folder / "report.html"
    return path.read_text(encoding="utf-8")


def titles(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_every_section_is_there(page: str) -> None:
    assert titles(page) == ["Summary", "Curves", "Similarities", "Queries", "Confused classes", "Map", "Threshold",
                            "Data problems", "Configuration", "Environment"]  # fmt: skip
    assert "<title>made: CircleLoss</title>" in page
    assert "Run made-circle-1" in page


def test_the_summary_says_before_and_after(page: str) -> None:
    assert "<b>75.0 %</b>recall@1<span>+50.0 points, from 25.0 %</span>" in page
    assert "<b>1 h 7 min</b>1,234 steps" in page
    rows = dict(re.findall(r"<tr><th scope=row>(.*?)</th>((?:<td class=number>[^<]*</td>)+)</tr>", page))
    values = {name: re.findall(r">([^<]*)</td>", cells) for name, cells in rows.items()}
    assert values["map@r"] == ["12.5 %", "50.0 %"]
    assert values["queries"] == ["48", "48"]
    assert values["lfw threshold"] == ["0.52", "0.31"]
    assert "48 images of 6 classes unseen in training" in page
    assert "at step 20." in page


def test_the_boundary_is_that_of_the_runs_loss(page: str) -> None:
    assert "the boundary of CircleLoss, s_n² + (1 − s_p)² = 2 · 0.25²." in page


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("- {name: CircleLoss, class_level: true}", "a sample and the vector of a class"),
        ("- {name: ProxyAnchorLoss}", "a sample and the proxy of a class"),
        ("- {name: TripletMarginLoss}", ""),
    ],
)
def test_what_a_boundary_is_between(tmp_path, loss: str, words: str) -> None:
    found, between = boundary_of_run(RunFolder(run_folder(tmp_path / "run", loss)))
    assert found is not None
    assert between == words


@pytest.mark.parametrize(
    "loss", ["- {name: SmoothAPLoss}", "- {name: CircleLoss}\n- {name: NormFaceLoss}", "- {name: Mine}"]
)
def test_no_boundary_where_there_is_none(tmp_path, loss: str) -> None:
    assert boundary_of_run(RunFolder(run_folder(tmp_path / "run", loss))) == (None, "")


def test_pictures_are_those_of_the_queries(page: str) -> None:
    grids = re.findall(r'<div class="grid search">(.*?)</div></div></div>', page)
    assert len(grids) == 2 * measured.EXAMPLES + 5  # each group of different classes: five of six
    for grid in grids:
        marks = re.findall(r'<div class="picture (\w+)" title="(?:(right|wrong): )?(class \d)?', grid)
        assert marks[0][0] == "query"
        assert len(marks) == 1 + measured.NEIGHBOURS
        own = re.search(r"<span class=caption>(class \d)</span>", grid)
        assert own is not None
        for mark, word, label in marks[1:]:
            assert mark == word == ("right" if label == own[1] else "wrong")
    assert page.count("data:image/webp") > 30


def test_the_same_run_gives_the_same_page(folder, page: str) -> None:
    made = table()
    assert run_page(folder, embeddings(made.labels), made).html() == page


def test_hostile_names_stay_names(tmp_path) -> None:
    made = table(names=tuple(f"{HOSTILE} {i} \udcff" for i in range(6)))
    hostile = dataclasses.replace(made, name=HOSTILE, notes=(HOSTILE,))
    folder = run_folder(tmp_path / "run", f"- {{name: {json.dumps(HOSTILE)}}}")
    page = run_page(folder, embeddings(made.labels, 2.0), hostile).html()
    page.encode("utf-8")
    assert "<script>window" not in page and "<img src=x" not in page
    assert page.count("<script>") == 1
    assert page.count("&lt;/script&gt;&lt;script&gt;window.broken") > 20


def test_broken_images_are_left_out_and_named(tmp_path) -> None:
    made = with_broken(table(), [3, 17])
    x = embeddings(made.labels)
    x[[3, 17]] = np.nan
    page = run_page(tmp_path, x, made).html()
    assert "2 of 48 images could not be read." in page
    assert "row 3\nrow 17" in page
    assert "All 46 images of 6 classes" in page
    assert "no image" not in page


def test_classes_of_one_image_and_rows_without_label_are_told(tmp_path) -> None:
    made = table()
    labels = made.labels.copy()
    labels[:2], labels[40:47] = -1, 0  # class 5 keeps one
    page = run_page(tmp_path, embeddings(made.labels), dataclasses.replace(made, labels=labels)).html()
    assert "1 classes have only one image" in page
    assert "2 rows have no label." in page


def test_nothing_wrong_is_said_too(page: str) -> None:
    assert "None: all 48 images could be read, and every class has at least two." in page


def test_queries_search_the_gallery_where_there_is_one(tmp_path) -> None:
    made = table()
    ids = np.where(np.arange(48) % 8 < 2, SPLITS.index("query"), SPLITS.index("gallery")).astype(np.int8)
    cameras = np.arange(48) % 2
    split = dataclasses.replace(made, split_ids=ids, columns={"camera": cameras})
    page = run_page(tmp_path, embeddings(made.labels), split).html()
    assert "Examples among 12 queries," in page
    shown = [int(row) for row in re.findall(r'class="picture query" title="row (\d+)"', page)]
    assert shown and all(row % 8 < 2 for row in shown)
    found = [int(row) for row in re.findall(r'title="(?:right|wrong): class \d, row (\d+)"', page)]
    assert found and all(row % 8 >= 2 for row in found)


def test_a_perfect_model_confuses_nothing(tmp_path) -> None:
    made = table()
    page = run_page(tmp_path, embeddings(made.labels, 0.0), made).html()
    assert "None: the nearest image of every query is of the same class." in page


@pytest.mark.parametrize("labels", [np.zeros(48, np.int64), np.arange(48), np.full(48, -1)])
def test_labels_that_leave_nothing_to_find(tmp_path, labels: np.ndarray) -> None:
    made = dataclasses.replace(table(), labels=labels, label_names=tuple(map(str, range(48))))
    page = run_page(tmp_path, embeddings(table().labels), made).html()
    assert "Queries" not in titles(page)
    assert "Data problems" in titles(page)


def test_a_collapsed_model_has_a_report(tmp_path) -> None:
    made = table()
    page = run_page(tmp_path, np.ones((48, 8), np.float32), made).html()
    assert "nearest is right: 0.0%" in page  # ties count against the model


def test_an_empty_folder_still_shows_the_embeddings(tmp_path) -> None:
    made = table()
    found = titles(run_page(tmp_path, embeddings(made.labels), made).html())
    assert found == ["Summary", "Similarities", "Queries", "Confused classes", "Map", "Threshold", "Data problems"]


def test_rows_without_images_are_shown_without_pictures(tmp_path) -> None:
    made = table()
    x = embeddings(made.labels)
    bare = dataclasses.replace(made, images=None, columns={"features": x})
    page = run_page(tmp_path, x, bare).html()
    assert "data:image/webp" not in page
    assert "no image<" in page


def test_embeddings_must_fit_the_table(folder) -> None:
    with pytest.raises(ValueError, match="3 embeddings for 48 rows of made: give one for each row"):
        run_page(folder, np.ones((3, 2), np.float32), table())


def test_the_page_is_bounded_however_many_images_there_are(tmp_path, monkeypatch) -> None:
    """Of twice the images, the page is as large, once the caps are reached."""
    monkeypatch.setattr(layout, "MOST_POINTS", 60)
    monkeypatch.setattr(layout.sample, "__defaults__", (60,))
    monkeypatch.setattr(measured, "SCATTERED", 40)
    monkeypatch.setattr(layout, "ITERATIONS", 250)
    sizes = []
    for each in (40, 80):
        made = table(each=each)
        sizes.append(len(run_page(tmp_path, embeddings(made.labels), made).html()))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)
