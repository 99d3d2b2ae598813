"""Searching through the API, against a search by hand."""

import numpy as np
import pytest

from nearfar.serve.served_gallery import item_key
from tests.serve.making import FREE, THRESHOLD, client, embed, photos, picture, served


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two runs on two galleries: the second knows fewer classes, under the same paths as the first."""
    folder = tmp_path_factory.mktemp("served")
    first = served(folder / "a")
    second = served(folder / "b", "b", threshold=None, classes=4)
    with client(first, second) as asking:
        yield asking, folder


def naive(folder, query: np.ndarray, **options) -> list[tuple[str, float]]:
    """Keys and similarities of all images, the nearest first."""
    paths = [path for path, _ in photos(folder / "photos", **options)]
    scores = [float(np.dot(embed(path)[0], query[0])) for path in paths]
    return sorted(((item_key(path), score) for path, score in zip(paths, scores, strict=True)), key=lambda one: -one[1])


def test_a_picture_finds_what_is_nearest(two) -> None:
    asking, folder = two
    for seed in range(3):
        content = picture(seed=seed)
        answer = asking.post("/api/runs/a/search", params={"k": 7}, content=content)
        assert answer.status_code == 200
        found = answer.json()
        wanted = naive(folder / "a", embed(content))[:7]
        assert [one["item"] for one in found["neighbours"]] == [key for key, _ in wanted]
        similarities = [one["similarity"] for one in found["neighbours"]]
        np.testing.assert_allclose(similarities, [score for _, score in wanted], atol=2e-6)
        assert [one["match"] for one in found["neighbours"]] == [score >= THRESHOLD for _, score in wanted]
        assert found["query"] is None and found["threshold"] == THRESHOLD and found["model_ms"] > 0


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
def test_every_format_is_read(two, kind: str) -> None:
    asking, _ = two
    answer = asking.post("/api/runs/a/search", content=picture(kind), headers={"Content-Type": f"image/{kind.lower()}"})
    assert answer.status_code == 200
    assert len(answer.json()["neighbours"]) == 12


def test_a_file_of_the_gallery_finds_itself_exactly(two) -> None:
    asking, folder = two
    path = folder / "a" / "photos" / "017.png"
    first = asking.post("/api/runs/a/search?k=1", content=path.read_bytes()).json()["neighbours"][0]
    assert first["item"] == item_key(str(path)) and first["similarity"] == pytest.approx(1, abs=1e-6)
    assert first["match"] is True and first["name"] == "017.png"


def test_an_image_of_the_gallery_does_not_find_itself(two) -> None:
    asking, folder = two
    path = str(folder / "a" / "photos" / "009.png")
    found = asking.get(f"/api/runs/a/items/{item_key(path)}/neighbours", params={"k": 100}).json()
    wanted = [key for key, _ in naive(folder / "a", embed(path)) if key != item_key(path)]
    assert [one["item"] for one in found["neighbours"]] == wanted  # all but itself
    assert found["query"]["item"] == item_key(path)
    assert found["query"]["label"].startswith("pattern 1 ")


def test_the_same_query_in_both_runs(two) -> None:
    """The second run embeds the image of the first itself, and has no threshold."""
    asking, folder = two
    path = str(folder / "a" / "photos" / "003.png")
    found = asking.get(f"/api/runs/b/items/{item_key(path)}/neighbours", params={"k": 5, "of": "a"}).json()
    wanted = naive(folder / "b", embed(path), classes=4)[:5]
    assert [one["item"] for one in found["neighbours"]] == [key for key, _ in wanted]
    assert found["run"] == "b" and found["query"]["item"] == item_key(path) and found["model_ms"] > 0
    assert found["threshold"] is None and {one["match"] for one in found["neighbours"]} == {None}
    # What is in the first gallery alone is not to be found in the second by its key.
    assert asking.get(f"/api/runs/b/items/{item_key(path)}/neighbours").status_code == 404


def test_an_image_that_both_galleries_have_is_left_out_of_both(tmp_path) -> None:
    one = served(tmp_path)
    other = type(one)("b", one.summary, embed, one.gallery)
    path = str(tmp_path / "photos" / "000.png")
    found = client(one, other).get(f"/api/runs/b/items/{item_key(path)}/neighbours?of=a&k=100").json()
    assert len(found["neighbours"]) == 59 and item_key(path) not in {hit["item"] for hit in found["neighbours"]}


def test_an_empty_gallery(tmp_path) -> None:
    run = served(tmp_path, classes=2, each=2)
    with run.gallery.index.change() as change:
        change.remove([item.id for item in list(run.gallery.index.listed())])
    asking = client(
        type(run)("a", run.summary, embed, type(run.gallery)(run.gallery.index, str, tmp_path)), limits=FREE
    )
    assert asking.post("/api/runs/a/search", content=picture()).json()["neighbours"] == []
    assert asking.get("/api/runs/a/items").json() == {"total": 0, "offset": 0, "items": []}
    for address in ("mistakes", "thresholds", "map"):
        answer = asking.get(f"/api/runs/a/{address}")
        assert answer.status_code == 409 and "fewer than two images with a label" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("/api/runs/a/search?k=0", "k: Input should be greater than or equal to 1"),
        ("/api/runs/a/search?k=101", "k: Input should be less than or equal to 100"),
        ("/api/runs/a/search?k=many", "k: Input should be a valid integer"),
        ("/api/runs/c/search", "run: Input should be 'a' or 'b'"),
    ],
)
def test_wrong_parameters(two, address: str, problem: str) -> None:
    answer = two[0].post(address, content=picture())
    assert answer.status_code == 422 and problem in answer.json()["detail"]
