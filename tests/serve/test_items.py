"""What is served: the state, the gallery page by page, classes, small pictures."""

import io

import pytest
from PIL import Image

import nearfar
from nearfar.serve.served_gallery import THUMBNAIL_BYTES, ServedGallery, display_name, item_key
from tests.serve.making import HOSTILE, client, picture, served


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return served(tmp_path_factory.mktemp("served"), classes=12, each=3)


@pytest.fixture(scope="module")
def asking(run):
    return client(run)


def test_the_state(asking) -> None:
    state = asking.get("/api/state").json()
    assert state["version"] == nearfar.__version__ and state["writable"] is True
    assert state["limits"]["types"] == ["image/jpeg", "image/png", "image/webp", "image/bmp", "image/gif"]
    (run,) = state["runs"]
    assert (run["name"], run["images"], run["classes"], run["threshold"]) == ("made a", 36, 12, 0.9)
    assert run["metrics"] == {"recall_at_1": 0.75, "map_at_r": None}


def test_the_gallery_comes_in_pages_and_in_order(asking) -> None:
    pages = [
        asking.get("/api/runs/a/items", params={"offset": start, "limit": 10}).json() for start in range(0, 50, 10)
    ]
    assert [len(page["items"]) for page in pages] == [10, 10, 10, 6, 0]
    assert {page["total"] for page in pages} == {36}
    labels = [item["label"] for page in pages for item in page["items"]]
    assert labels == [f"pattern {number} {HOSTILE}" for number in range(12) for _ in range(3)]  # 2 before 10
    assert len({item["item"] for page in pages for item in page["items"]}) == 36


def test_one_class(asking) -> None:
    label = f"pattern 10 {HOSTILE}"
    page = asking.get("/api/runs/a/items", params={"label": label}).json()
    assert page["total"] == 3 and {item["label"] for item in page["items"]} == {label}
    assert [item["name"] for item in page["items"]] == ["030.png", "031.png", "032.png"]
    assert asking.get("/api/runs/a/items", params={"label": "pattern"}).json()["total"] == 0


def test_classes_by_name(asking) -> None:
    found = asking.get("/api/runs/a/classes", params={"contains": "PATTERN 1", "limit": 2}).json()
    assert found["total"] == 3  # 1, 10 and 11
    assert [(one["label"], one["images"]) for one in found["classes"]] == [
        (f"pattern {n} {HOSTILE}", 3) for n in (1, 10)
    ]
    assert [one["first"]["name"] for one in found["classes"]] == ["003.png", "030.png"]
    rest = asking.get("/api/runs/a/classes", params={"contains": "pattern 1", "offset": 2}).json()
    assert [one["first"]["name"] for one in rest["classes"]] == ["033.png"]
    assert asking.get("/api/runs/a/classes", params={"contains": "zebra"}).json()["total"] == 0


def test_small_pictures(asking, run, tmp_path) -> None:
    item = asking.get("/api/runs/a/items?limit=1").json()["items"][0]["item"]
    answer = asking.get(f"/api/runs/a/items/{item}/picture?side=96")
    assert answer.headers["content-type"] == "image/webp" and "max-age" in answer.headers["cache-control"]
    with Image.open(io.BytesIO(answer.content)) as shown:
        assert (shown.format, shown.size) == ("WEBP", (16, 16))  # never larger than it is
    large = tmp_path / "large.jpg"
    large.write_bytes(picture("JPEG", (900, 300)))
    gallery = ServedGallery(run.gallery.index, lambda image: str(large), tmp_path)
    for side, size in ((96, (96, 32)), (384, (384, 128))):
        with Image.open(io.BytesIO(gallery.thumbnail(run.gallery.catalogue.ids[0], side))) as shown:
            assert shown.size == size
    large.unlink()
    assert gallery.thumbnail(run.gallery.catalogue.ids[0], 96)  # kept
    assert gallery._thumbnail_bytes < THUMBNAIL_BYTES


def test_small_pictures_that_are_not_asked_for_are_forgotten(run, monkeypatch) -> None:
    monkeypatch.setattr("nearfar.serve.served_gallery.THUMBNAIL_BYTES", 3000)
    gallery = ServedGallery(run.gallery.index, lambda image: image, run.gallery.added)
    for image in run.gallery.catalogue.ids:
        gallery.thumbnail(image, 96)
    assert gallery._thumbnail_bytes == sum(map(len, gallery._thumbnails.values())) <= 3000
    assert (run.gallery.catalogue.ids[-1], 96) in gallery._thumbnails


def test_a_picture_that_is_gone_or_broken(run, tmp_path) -> None:
    def pictures(image: str) -> str:
        if image.endswith("000.png"):
            raise KeyError(image)
        return str(tmp_path / "nothing.png")

    gallery = ServedGallery(run.gallery.index, pictures, tmp_path)
    asking = client(type(run)("a", run.summary, run._embed, gallery))
    first, second = (item_key(image) for image in run.gallery.catalogue.ids[:2])
    assert asking.get(f"/api/runs/a/items/{first}/picture").status_code == 404
    broken = asking.get(f"/api/runs/a/items/{second}/picture")
    assert broken.status_code == 422 and broken.json() == {"detail": "the picture cannot be read: no such file"}
    assert str(tmp_path) not in broken.text


def test_changes_by_another_process_are_seen(tmp_path, monkeypatch) -> None:
    from nearfar.retrieval.index import open_index

    run = served(tmp_path, classes=2, each=2)
    asking = client(run)
    other = open_index(tmp_path / "index")
    with other.change() as change:
        change.remove([run.gallery.catalogue.ids[0]])
    monkeypatch.setattr("nearfar.serve.served_gallery.REFRESH_SECONDS", -1.0)  # always
    assert asking.get("/api/runs/a/items").json()["total"] == 3


def test_names_without_places() -> None:
    assert display_name("/home/me/private/cat.jpg") == "cat.jpg"
    assert display_name(r"C:\Users\me\cat.jpg") == "cat.jpg"
    assert display_name("/data/set.npz#12") == "#12"
    assert display_name("/a/b\udcff.jpg") == "b\ufffd.jpg"
