"""Image files in folders that hold other things too."""

import os
from pathlib import Path

import pytest

from nearfar.imaging import images_below
from tests.data.making import image


def test_images_of_all_subfolders_sorted(tmp_path: Path) -> None:
    names = ["b/2.png", "b/10.JPG", "a.jpg", "ä ü/ß\n1.jpg", "b.c/d/e.jpeg"]
    for name in [*names, ".hidden/x.jpg", "b/.x.jpg", "b/notes.txt"]:
        tmp_path.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        tmp_path.joinpath(name).write_bytes(b"")
    tmp_path.joinpath("empty").mkdir()
    tmp_path.joinpath("folder.jpg").mkdir()
    image(tmp_path / "folder.jpg" / "inside.png")
    assert images_below(tmp_path) == sorted([*names, "folder.jpg/inside.png"])
    assert images_below(str(tmp_path / "empty")) == []
    with pytest.raises(FileNotFoundError):
        images_below(tmp_path / "nowhere")


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.jpg")
    tmp_path.joinpath(name).write_bytes(b"")
    assert images_below(tmp_path) == [name]


def test_links_are_followed_but_never_in_circles(tmp_path: Path) -> None:
    store, data = tmp_path / "store", tmp_path / "data"
    image(store / "cats" / "1.jpg")
    image(data / "dogs" / "2.jpg")
    data.joinpath("cats").symlink_to(store / "cats")
    data.joinpath("dogs", "again").symlink_to(data)
    data.joinpath("dogs", "3.jpg").symlink_to(store / "cats" / "1.jpg")
    data.joinpath("dogs", "gone.jpg").symlink_to(tmp_path / "nothing")
    assert images_below(data) == ["cats/1.jpg", "dogs/2.jpg", "dogs/3.jpg", "dogs/gone.jpg"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    tmp_path.joinpath("link.jpg").symlink_to(tmp_path / "pipe.jpg")
    assert images_below(tmp_path) == []
