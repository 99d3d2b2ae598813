"""Who is it, or nobody: scores, rehearsals and thresholds against loops that share nothing with them."""

import json
import math
import random

import numpy as np
import pytest
import torch

from nearfar.evaluation import NotCalibratedError, OpenSet, calibrate_open_set
from nearfar.evaluation.enrolment import Best, best, class_scores, templates
from nearfar.evaluation.open_set import _detection_rate, _left_out, _threshold
from nearfar.evaluation.trials import folds_of, rehearse


def pictures(classes: int, each: int, *, spread: float = 1.0, sides: int = 1, dimension: int = 12, seed: int = 0):
    """Unit vectors around centres, `sides` of them for each class, and labels."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, sides, dimension))
    x = np.repeat(centres, -(-each // sides), 1)[:, :each] + spread * rng.normal(size=(classes, each, dimension))
    x = x.reshape(-1, dimension)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), np.repeat(np.arange(classes), each)


def cosine(a, b) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def naive_score(probe, images, rule: str) -> float:
    if rule == "nearest":
        return max(cosine(probe, image) for image in images)
    total = [sum(values) for values in zip(*images, strict=True)]
    return cosine(probe, total) / math.sqrt(cosine(total, total))


def naive_search(probe, gallery: dict[int, list], rule: str) -> tuple[int, float]:
    """The best class and its evidence, by sorting."""
    ranked = sorted(((naive_score(probe, images, rule), name) for name, images in gallery.items()), reverse=True)
    return ranked[0][1], ranked[0][0] - (0.5 * ranked[1][0] if len(ranked) > 1 else 0)


# Scores


@pytest.mark.parametrize("rule", ["template", "nearest"])
def test_scores_are_those_of_loops(rule: str) -> None:
    x, places = pictures(5, 4)
    shuffled = np.random.default_rng(1).permutation(len(x))
    x, places = x[shuffled], places[shuffled]
    probes = pictures(3, 2, seed=9)[0]
    found = class_scores(probes, x, places, 5, rule)  # type: ignore[arg-type]
    for row, probe in enumerate(probes.tolist()):
        for name in range(5):
            assert found[row, name] == pytest.approx(naive_score(probe, x[places == name].tolist(), rule), abs=1e-5)
    told = best(found)
    for row, probe in enumerate(probes.tolist()):
        gallery = {name: x[places == name].tolist() for name in range(5)}
        place, evidence = naive_search(probe, gallery, rule)
        assert told.place[row] == place and told.evidence[row] == pytest.approx(evidence, abs=1e-5)


def test_a_template_of_pictures_that_cancel_is_like_nothing_and_one_class_has_no_runner_up() -> None:
    x = np.array([[1, 0], [-1, 0]], np.float32)
    assert np.array_equal(templates(x, np.zeros(2, np.int64), 1), np.zeros((1, 2)))
    alone = best(np.array([[0.25]], np.float32))
    assert alone == Best(0, 0.25, -1, 0) and alone.evidence == 0.25


# Rehearsals


@pytest.mark.parametrize(("rule", "enrolled"), [("template", 3), ("nearest", 5), ("template", 1)])
def test_rates_are_those_of_naive_draws(rule: str, enrolled: int) -> None:
    """6 classes of 5 pictures, 2 of them enrolled: FAR and DIR at some thresholds, by drawing in loops."""
    x, labels = pictures(6, 5, spread=0.8)
    trials = rehearse(folds_of(x, labels, np.zeros(30, np.int64)), np.array([2]), enrolled, rule)  # type: ignore[arg-type]
    assert trials.images == 2 and trials.enrolled == enrolled and trials.weight.sum() == pytest.approx(1)
    draw = random.Random(0)
    strangers: list[float] = []
    known: list[tuple[float, bool]] = []
    for _ in range(1500):
        dealt = {name: draw.sample(x[labels == name].tolist(), 5) for name in range(6)}
        own = draw.randrange(6)
        probe = dealt[own][2]
        others = draw.sample([name for name in range(6) if name != own], enrolled)
        strangers.append(naive_search(probe, {name: dealt[name][:2] for name in others}, rule)[1])
        named, evidence = naive_search(probe, {name: dealt[name][:2] for name in [own, *others[1:]]}, rule)
        known.append((evidence, named == own))
    for threshold in (0.2, 0.4, 0.6):
        far = sum(evidence >= threshold for evidence in strangers) / len(strangers)
        assert float(trials.weight @ (trials.stranger >= threshold)) == pytest.approx(far, abs=0.05)
        dir_ = sum(evidence >= threshold and right for evidence, right in known) / len(known)
        assert float(trials.weight @ ((trials.known >= threshold) & trials.right)) == pytest.approx(dir_, abs=0.05)


def test_classes_of_one_picture_and_small_folds_are_left_out() -> None:
    x, labels = pictures(12, 3)
    fold = np.where(labels < 6, 0, np.where(labels < 11, 1, 2))
    labels[0] = 99  # alone in fold 0
    folds = folds_of(x, labels, fold)
    assert [held.classes for held in folds] == [6, 5]  # fold 2 has one class
    trials = rehearse(folds, np.array([1]), 4, "template")
    assert trials.classes == 11 and set(trials.label) == set(range(11))
    same_fold = (trials.label < 6) == (trials.named < 6)
    assert same_fold.all() and (trials.label != trials.named).all()


def test_thresholds_and_classes_left_out_are_those_of_loops() -> None:
    x, labels = pictures(9, 6, spread=0.9, seed=3)
    trials = rehearse(folds_of(x, labels, np.zeros(54, np.int64)), np.array([2]), 4, "template")
    rows = list(zip(trials.label, trials.named, trials.stranger.tolist(), trials.weight.tolist(), strict=True))

    def naive_threshold(some, rate: float) -> float:
        """The lowest evidence seen, such that those of at least it are not too many."""
        whole = sum(weight for *_, weight in some)
        ok = [math.inf]
        for _, _, evidence, _ in some:
            if evidence < min(ok) and sum(w for _, _, v, w in some if v >= evidence) <= rate * whole * (1 + 1e-9):
                ok.append(evidence)
        return min(ok)

    rows = random.Random(0).sample(rows, 600)  # loops in loops
    few = type(trials)(
        *(np.array(column) for column in (
            [r[0] for r in rows], [0] * 600, [0.0] * 600, [True] * 600, [r[2] for r in rows], [r[1] for r in rows]
        )), 9, 4, 2.0
    )  # fmt: skip
    rows = list(zip(few.label, few.named, few.stranger.tolist(), few.weight.tolist(), strict=True))
    for rate in (0.05, 0.2):
        threshold = naive_threshold(rows, rate)
        accepted = few.stranger >= _threshold(few.stranger, few.weight, rate)
        assert np.array_equal(accepted, few.stranger >= threshold)
        assert _detection_rate(few, rate) == 0  # known have no evidence in these
    wanted = []
    for rate in (0.05, 0.2):
        rates = []
        for one in range(9):
            # The weights of the others are those of eight classes, whether or not they named the one left out.
            others = [row for row in rows if row[0] != one and row[1] != one]
            missing = 8 / 9 - sum(row[3] for row in others)
            threshold = naive_threshold([*others, (-1, -1, -math.inf, missing)], rate)
            first_refused = max((v for _, _, v, _ in others if v < threshold), default=-math.inf)
            own = [v for label, _, v, _ in rows if label == one]
            rates.append(sum(v > first_refused for v in own) / len(own))
        wanted.append(sum(rates) / 9)
    assert _left_out(few, np.array([0.05, 0.2])) == pytest.approx(wanted, abs=1e-9)


# Calibration


def measured(x, labels, held: int, enrolled: int, each: int, found: OpenSet) -> tuple[float, float]:
    """FAR and DIR on classes from `held` on, of which the first are enrolled; by sorting."""
    gallery = {name: x[labels == name][:each].tolist() for name in range(held, held + enrolled)}
    false, right = [], []
    for name in range(held, int(labels.max()) + 1):
        for probe in x[labels == name][each if name in gallery else 0 :].tolist():
            named, evidence = naive_search(probe, gallery, found.rule)
            accepted = evidence >= found.threshold
            if name in gallery:
                right.append(accepted and named == name)
            else:
                false.append(accepted)
    return sum(false) / len(false), sum(right) / len(right)


def test_what_is_stated_is_what_is_measured() -> None:
    x, labels = pictures(90, 12, spread=0.5, dimension=16)
    train = labels < 50
    found = calibrate_open_set(x[train], labels[train], np.full(20, 3), far=0.05)
    assert 0 < found.far <= 0.05 and found.classes == 50 and found.rehearsed == found.enrolled == 20
    assert found.far_interval[0] < found.far < found.far_interval[1]
    assert found.dir_interval[0] < found.dir < found.dir_interval[1]
    far, dir_ = measured(x, labels, 50, 20, 3, found)
    assert found.far_interval[0] - 5e-4 <= far <= found.far_interval[1]
    assert found.dir_interval[0] <= dir_ <= found.dir_interval[1]
    again = calibrate_open_set(torch.from_numpy(x[train]), labels[train].tolist(), [3] * 20, far=0.05)
    assert again == found  # the same seed, tensors or arrays


def test_the_probability_is_a_share() -> None:
    """Of what is told to be right with 80 to 100 %, so many are."""
    x, labels = pictures(120, 12, spread=0.8, dimension=16, seed=1)
    train = labels < 60
    found = calibrate_open_set(x[train], labels[train], np.full(30, 3))
    gallery = x[(labels >= 60) & (labels < 90)].reshape(30, 12, -1)
    scores = class_scores(
        np.concatenate([gallery[:, 3:].reshape(270, -1), x[labels >= 90]]),
        gallery[:, :3].reshape(90, -1), np.repeat(np.arange(30), 3), 30, found.rule,
    )  # fmt: skip
    told = best(scores)
    p = found.probability(told.evidence)
    right = np.append(told.place[:270] == np.repeat(np.arange(30), 9), np.zeros(360, np.bool_))
    weight = np.append(np.full(270, 1 / 270), np.full(360, 1 / 360))
    for low, high in ((0, 0.3), (0.3, 0.7), (0.7, 1)):
        some = (p >= low) & (p < high)
        share = weight[some] @ right[some] / weight[some].sum()
        assert share == pytest.approx(weight[some] @ p[some] / weight[some].sum(), abs=0.12)
    rarer = calibrate_open_set(x[train], labels[train], np.full(30, 3), prior=0.1)
    assert (rarer.probability(told.evidence) < p).all() and rarer.threshold == found.threshold


def test_the_rule_suits_the_classes() -> None:
    for sides, rule in ((1, "template"), (6, "nearest")):
        x, labels = pictures(30, 24, spread=0.5, sides=sides, dimension=16, seed=2)
        assert calibrate_open_set(x, labels, np.full(10, 12)).rule == rule


def test_more_classes_than_were_held_out_are_found_less_often() -> None:
    x, labels = pictures(20, 10, spread=0.9)
    few, many = (calibrate_open_set(x, labels, np.full(classes, 2), far=0.1) for classes in (19, 200))
    assert few.rehearsed == many.rehearsed == 19 and many.enrolled == 200
    assert many.dir < few.dir and many.threshold >= few.threshold and many.far <= 0.1
    assert many.probability(0.5) < few.probability(0.5)


def test_folds_are_not_compared_and_broken_rows_are_left_out() -> None:
    """Each class is there twice, once in each fold: compared across folds, no stranger would be told from its twin."""
    x, labels = pictures(16, 8, spread=0.3)
    twice, names = np.concatenate([x, x]), np.concatenate([labels, labels + 16])
    apart = calibrate_open_set(twice, names, np.full(8, 2), fold=np.repeat([0, 1], len(x)))
    together = calibrate_open_set(twice, names, np.full(8, 2), far=0.05)
    assert apart.dir > 0.8 > 0.5 > together.dir
    broken = twice.copy()
    broken[3] = np.nan
    assert calibrate_open_set(broken, names, np.full(8, 2), fold=np.repeat([0, 1], len(x))).dir > 0.8


def test_classes_that_are_far_apart_cost_nothing() -> None:
    """All are found, at a threshold that lets fewer strangers pass than was allowed; and certainty is not claimed."""
    x, labels = pictures(20, 8, spread=0.1, dimension=64)
    found = calibrate_open_set(x, labels, np.full(8, 2), far=0.1)
    assert found.dir == pytest.approx(1) and found.dir_interval[1] == 1 and found.dir_interval[0] < 0.99
    assert found.far < 0.05 and found.far_interval[0] == 0 and found.far_interval[1] >= 1 / 80
    assert found.probability(0.9) < 21 / 22 + 1e-3


def test_too_little_is_said_so() -> None:
    x, labels = pictures(7, 6)
    with pytest.raises(NotCalibratedError, match=r"^only 7 held-out classes have two or more images, and at least 8"):
        calibrate_open_set(x, labels, [2] * 3)
    x, labels = pictures(8, 6, spread=1.5)
    x[:24] += 2 * np.repeat(x[24:36:12], 24, 0)[:24]  # four classes that are much like each other
    with pytest.raises(
        NotCalibratedError, match=r"8 held-out classes are too few for a FAR of 0\.001 %: ask for at least .* %"
    ):
        calibrate_open_set(x, labels, [2] * 4, far=1e-5)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"far": 0}, "between 0 and 1, such as 0.01, not 0"),
        ({"far": 1.5}, "FAR"),
        ({"prior": 1}, "between 0 and 1, not 1"),
        ({"counts": []}, "at least one class"),
        ({"counts": [0, 1]}, "at least one class with one image each"),
    ],
)
def test_wrong_arguments(options: dict, problem: str) -> None:
    x, labels = pictures(9, 3)
    with pytest.raises(ValueError, match=problem):
        calibrate_open_set(x, labels, **{"counts": [1, 1], **options})


def test_it_turns_into_json_and_back() -> None:
    x, labels = pictures(12, 5)
    found = calibrate_open_set(x, labels, [2] * 5, far=0.1)
    back = OpenSet.from_dict(json.loads(json.dumps(found.to_dict())))
    assert back == found
    v = np.array([found.threshold - 0.1, found.threshold])
    assert back.accepts(v).tolist() == [False, True]
    assert 0 < back.probability(v)[0] <= back.probability(v)[1] < 1
