"""Files and folders that appear whole or not at all."""

import errno
import os
import stat
from pathlib import Path

import pytest

from nearfar.foundation import files
from nearfar.foundation.files import new_folder, replaced_file, replaced_path, write_file, write_rows
from nearfar.foundation.folders import numbered_folder


def test_what_is_written_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "notes.txt"
    write_file(path, "first")
    write_file(path, "größer")
    assert path.read_text(encoding="utf-8") == "größer"
    assert [entry.name for entry in path.parent.iterdir()] == ["notes.txt"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    write_file(path, "old")
    with pytest.raises(TypeError), replaced_file(path) as file:
        file.writelines([b"new", 7])  # type: ignore[list-item]
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_the_disk_is_quoted_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as raised, replaced_file(tmp_path / "notes.txt"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert raised.value.filename == os.fspath(tmp_path / "notes.txt")
    assert list(tmp_path.iterdir()) == []


def test_it_is_flushed_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    flush, replace = os.fsync, Path.replace
    monkeypatch.setattr(files.os, "fsync", lambda number: (done.append("flush"), flush(number))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (done.append("rename"), replace(self, to))[1])
    write_file(tmp_path / "notes.txt", b"new")
    assert done == ["flush", "rename", "flush"]  # the file, its name, the folder


def test_a_link_in_the_way_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if its name were guessed."""
    victim, path = tmp_path / "victim", tmp_path / "run" / "notes.txt"
    victim.write_text("precious")
    path.parent.mkdir()
    monkeypatch.setattr(files.uuid, "uuid4", lambda: files.uuid.UUID(int=7))
    (path.parent / f".notes.txt.{files.uuid.UUID(int=7).hex}").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_file(path, "new")
    assert victim.read_text() == "precious" and not path.exists()


def test_files_have_the_permissions_of_the_users_other_files(tmp_path: Path) -> None:
    (tmp_path / "ordinary").touch()
    with replaced_path(tmp_path / "ours") as partial:
        partial.write_bytes(b"whole")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE((tmp_path / "ordinary").stat().st_mode)


def test_rows(tmp_path: Path) -> None:
    write_rows(tmp_path / "table.csv", ["name", "value"], [["a,b", 1.5], ["\udcff", None]])
    assert (tmp_path / "table.csv").read_bytes() == b'name,value\r\n"a,b",1.5\r\n\xff,\r\n'


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "export"
    with pytest.raises(IsADirectoryError), new_folder(target) as folder:
        folder.write_text("half of it")
    assert list(tmp_path.iterdir()) == []
    for name in ("old", "new"):
        with new_folder(target) as folder:
            (folder / name).touch()
            assert not (target / name).exists()
    assert [path.name for path in target.iterdir()] == ["new"] and list(tmp_path.iterdir()) == [target]


def test_numbered_folders(tmp_path: Path) -> None:
    parent = os.fspath(tmp_path)
    for number in (1, 2):
        assert numbered_folder(parent, "photos") == tmp_path / f"photos-{number}"
        numbered_folder(parent, "photos").mkdir()
