"""The encoder cache and the cache of glyphs: killed, or without room, they hold what is right, and go on."""

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from nearfar.data import FeatureCache, embedded
from tests.faults import jobs
from tests.faults.crash import FAULTS, WORDS_OF, Crasher, How, Outcome, points

FEW = 2  # changes to fail at, of each kind


def told(outcome: Outcome, how: How) -> bool:
    """Whether it has ended as it should: killed, or with an error that says what the disk says."""
    if how == "kill":
        return outcome.code == -signal.SIGKILL
    return outcome.code == 1 and any(words in outcome.said for words in WORDS_OF.values()) and "/" in outcome.said


def check_features(folder: Path, *, everything: bool) -> None:
    """Every feature that is found is the right one; and then they are all there."""
    encode = jobs.Encode()
    features = FeatureCache(folder, "key").compute(jobs.cached_images(), encode, views=2)
    for view in range(2):
        expected = np.stack([jobs.feature_of(image, view) for image in jobs.cached_images()])
        assert np.array_equal(features.take(np.arange(jobs.IMAGES), view), expected)
    assert not everything or encode.asked == 0
    again = jobs.Encode()
    FeatureCache(folder, "key").compute(jobs.cached_images(), again, views=2)
    assert again.asked == 0


@pytest.mark.parametrize("how", FAULTS)
def test_features(how: How, crasher: Crasher, tmp_path: Path) -> None:
    whole = crasher.call("fill_cache", str(tmp_path / "whole"), folder=tmp_path / "whole")
    assert whole.code == 0 and whole.changes > 10
    check_features(tmp_path / "whole", everything=True)
    for at in points(whole.changes, FEW, how):
        folder = tmp_path / f"{at}"
        outcome = crasher.call("fill_cache", str(folder), folder=folder, at=at, how=how)
        assert outcome.code == 0 or told(outcome, how), f"{how} at change {at}: {outcome}"
        check_features(folder, everything=outcome.code == 0)
        shutil.rmtree(folder)


@pytest.mark.parametrize("how", FAULTS)
def test_glyphs(how: How, crasher: Crasher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_make", jobs.drawn)
    whole = crasher.call("make_glyphs", str(tmp_path / "whole"), folder=tmp_path / "whole")
    assert whole.code == 0 and whole.changes >= 4
    expected = jobs.drawn(jobs.CLASSES, jobs.PER_CLASS, 8)["images"]
    for at in points(whole.changes, FEW, how):
        folder = tmp_path / f"{at}"
        outcome = crasher.call("make_glyphs", str(folder), folder=folder, at=at, how=how)
        if outcome.code == 0:  # all of it was written already
            assert how == "short"
            assert np.array_equal(np.load(next(folder.iterdir()))["images"], expected)
            continue
        assert told(outcome, how), f"{how} at change {at}: {outcome}"
        assert how in ("kill", "readonly") or not list(folder.glob("*glyphs*"))  # where it could, it has cleared away
        table = embedded.glyphs(jobs.CLASSES, jobs.PER_CLASS, 8, cache=folder)
        assert table.images is not None
        assert np.array_equal(np.stack([np.asarray(image) for image in table.images]), expected)
