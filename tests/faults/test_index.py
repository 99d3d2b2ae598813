"""`nearfar index`: a build and every kind of change, killed or without room, leave the old index or the new one."""

import functools
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearfar.retrieval.index import About, index_exists, make_index, open_index
from tests.faults.crash import FAULTS, WORDS_OF, Crasher, How, points
from tests.retrieval.making import names, photos, run, vectors

FEW = 1
Contents = dict[str, tuple[str, bytes]] | None


@dataclass(frozen=True)
class Place:
    """A folder with photographs, two runs, and an index."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def index(self, *words: str, run: str = "run") -> list[str]:
        return ["index", self.path(run), *words, "--index", self.path("index")]


def contents(place: Place) -> tuple[Contents, str, object]:
    """Images with labels and vectors, the model, and the threshold; what is there can be read."""
    if not index_exists(place.path("index")):
        return None, "", None
    index = open_index(place.path("index"))
    ids = [item.id for item in index.listed()]
    vectors = index.vectors(ids)
    found = {name: (item.label, row.tobytes()) for name, item, row in zip(ids, index.items(ids), vectors, strict=True)}
    for hits, name in zip(index.search(vectors, 1), ids, strict=True):
        assert hits[0].similarity == pytest.approx(1, abs=1e-5), name
    assert len(index) == len(found)
    result = found, index.about.model, index.about.threshold
    index.close()
    return result


def nothing(place: Place, crasher: Crasher) -> None:
    """No index yet."""


def half(place: Place, crasher: Crasher) -> None:
    """The photographs of half of the classes; one has changed since."""
    folders = sorted(path for path in (place.folder / "photos").iterdir())
    some = [str(path) for folder in folders[:2] for path in sorted(folder.iterdir())]
    assert crasher.run(place.index(*some), place.folder).code == 0
    shade = np.asarray(Image.open(some[0])) // 2 + 60
    Image.fromarray(shade).save(some[0])


def pieces(place: Place, crasher: Crasher) -> None:
    """An index that many changes have left in pieces, with some images gone."""
    for folder in sorted((place.folder / "photos").iterdir()):
        assert crasher.run(place.index(*map(str, sorted(folder.iterdir()))), place.folder).code == 0
    gone = next((place.folder / "photos" / "pattern 1").iterdir())
    assert crasher.run(place.index("--remove", str(gone)), place.folder).code == 0


CASES: dict[str, tuple[Callable[[Place, Crasher], None], Callable[[Place], list[str]]]] = {
    "build": (nothing, lambda place: place.index(place.path("photos"))),
    "add": (half, lambda place: place.index(place.path("photos"))),
    "remove": (pieces, lambda place: place.index("--remove", place.path("photos/pattern 0"))),
    "compact": (pieces, lambda place: place.index("--compact")),
    "replace": (half, lambda place: place.index(place.path("photos"), "--rebuild", run="other")),
}


@dataclass(frozen=True)
class Prepared:
    """A case: the index before and after, and how many changes of files lie between."""

    place: Place
    before: tuple[Contents, str, object]
    after: tuple[Contents, str, object]
    changes: int

    def put_back(self) -> None:
        shutil.rmtree(self.place.path("index"), ignore_errors=True)
        if Path(self.place.path("kept")).exists():
            shutil.copytree(self.place.path("kept"), self.place.path("index"))


@pytest.fixture(scope="module")
def prepared(crasher: Crasher, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Prepared]:
    @functools.cache
    def made(case: str) -> Prepared:
        prepare, words = CASES[case]
        place = Place(tmp_path_factory.mktemp(case))
        photos(place.folder / "photos", classes=4, each=3)
        run(place.folder / "run", place.folder / "photos", seed=0, threshold=0.5)
        run(place.folder / "other", place.folder / "photos", seed=1, threshold=0.75)
        prepare(place, crasher)
        before = contents(place)
        if Path(place.path("index")).exists():
            shutil.copytree(place.path("index"), place.path("kept"))
        whole = crasher.run(words(place), Path(place.path("index")))
        assert whole.code == 0, whole.said
        after = contents(place)
        assert (after != before) == (case != "compact") and after[2] is not None and whole.changes > 5
        return Prepared(place, before, after, whole.changes)

    return made


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("how", FAULTS)
def test_the_old_index_or_the_new_one(
    case: str, how: How, crasher: Crasher, prepared: Callable[[str], Prepared]
) -> None:
    own = prepared(case)
    index, words = Path(own.place.path("index")), CASES[case][1](own.place)
    for at in points(own.changes, FEW, f"{case} {how}"):
        own.put_back()
        outcome = crasher.run(words, index, at, how)
        now = contents(own.place)
        where = f"{case}, {how} at change {at}: {outcome}"
        check_end(how, outcome.code, outcome.said, where)
        assert now in (own.before, own.after), where
        assert outcome.code != 0 or now == own.after, where
        again = crasher.run(words, index)
        if case == "remove" and now == own.after:
            assert again.code == 2 and "has no image" in again.said
        else:
            assert again.code == 0, again.said
        assert contents(own.place) == own.after, where


def test_a_graph(crasher: Crasher, tmp_path: Path) -> None:
    """Which FAISS writes itself."""
    before = tmp_path / "before"
    index = make_index(before, About("exact", "cosine", 16, "m"))
    with index.change() as change:
        change.put(names(30), vectors(30))
    shutil.copytree(before, tmp_path / "whole")
    whole = crasher.call("build_graph", str(tmp_path / "whole"), folder=tmp_path / "whole")
    assert whole.code == 0 and open_index(tmp_path / "whole").about.kind == "hnsw"
    for how in FAULTS:
        for at in points(whole.changes, FEW, how):
            folder = tmp_path / f"{how}-{at}"
            shutil.copytree(before, folder)
            outcome = crasher.call("build_graph", str(folder), folder=folder, at=at, how=how)
            found = open_index(folder)
            assert sorted(item.id for item in found.listed()) == names(30)
            assert [hits[0].id for hits in found.search(vectors(30), 1)] == names(30)
            where = f"{how} at change {at}: {outcome}"
            assert outcome.code != 0 or found.about.kind == "hnsw", where
            assert outcome.code in (0, -signal.SIGKILL) or any(words in outcome.said for words in WORDS_OF.values()), (
                where
            )
            assert (outcome.code == -signal.SIGKILL) == (how == "kill"), where
            assert crasher.call("build_graph", str(folder), folder=folder).code == 0
            assert open_index(folder).about.kind == "hnsw"


def check_end(how: How, code: int, said: str, where: str) -> None:
    """Killed; or told, in a line, what the disk says; or, where only clearing away has failed, nothing."""
    if how == "kill":
        assert code == -signal.SIGKILL, where
    elif code:
        assert code == 2 and any(words in said for words in WORDS_OF.values()) and "/index" in said, where
        assert "Traceback" not in said, where
