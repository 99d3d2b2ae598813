"""The contract of a spec: every executor computes it alike, or it is refused before anything is computed.

Random specs go through the oracle `engine.dense` and through the engine: in one tile and in many, with any budget,
reduction, weights, masks and mining, in one process and with rows or columns shared out among ranks. `NEARFAR_LONG=1`
tries ten thousand.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from nearfar.errors import InputError
from nearfar.losses import engine
from nearfar.losses.engine import angles, maps
from nearfar.losses.engine.maps import Column, Row
from nearfar.losses.engine.memory import Spare
from nearfar.losses.engine.pairs import ClassPairs
from nearfar.losses.engine.plan import Plan
from nearfar.losses.engine.pools import Nearest
from nearfar.losses.engine.spec import LossSpec, refusals
from tests.losses.random_specs import COLUMN_NUMBERS, ROW_NUMBERS, Problem, disagreement

PARTS = 10  # so that the long form can be run by several processes
NUMBER = 1_000 if os.environ.get("NEARFAR_LONG") else 40  # of each part
PAGE = Path(__file__).parents[2] / "docs" / "engine.md"
NAMES = {"maps": maps, "angles": angles, "Row": Row, "Column": Column, "Nearest": Nearest}


def refused_settings() -> list[tuple[str, str]]:
    """The rows of the page's table: a setting, and what its error says."""
    table = PAGE.read_text().partition("| refused setting |")[2].partition("\n\n")[0]
    rows: list[tuple[str, str]] = re.findall(r"^\| `(.*?)` \| (.*) \|$", table, re.MULTILINE)
    return rows


@pytest.mark.parametrize("part", range(PARTS))
def test_every_executor_computes_a_spec_alike_or_refuses_it(part: int) -> None:
    refused, wrong = 0, []
    for number in range(part * NUMBER, (part + 1) * NUMBER):
        problem = Problem(number)
        if reasons := refusals(problem.spec, ROW_NUMBERS, COLUMN_NUMBERS):
            refused += 1
            with pytest.raises(InputError, match=re.escape(reasons[0])):
                problem.by_engine()
            continue
        expected = problem.by_oracle()
        assert all(bool(tensor.isfinite().all()) for tensor in expected), problem
        wrong += [
            f"{number}, {executor.__name__}: {difference}: {problem}"
            for executor in problem.executors()
            if (difference := disagreement(executor(), expected))
        ]
    assert not wrong, f"{len(wrong)} of {NUMBER} disagree\n" + "\n".join(wrong[:9])
    assert refused <= NUMBER * (1 / 3 if NUMBER >= 1_000 else 1 / 2)


@pytest.mark.parametrize(("setting", "message"), refused_settings())
def test_what_has_no_meaning_is_refused_with_what_there_is_instead(setting: str, message: str) -> None:
    """The page's table, row by row."""
    spec = LossSpec(maps.Linear(-1.0), maps.Linear(1.0))._replace(**eval(f"dict({setting})", NAMES))
    plan = Plan(spec, ClassPairs.to_classes(torch.arange(3), 3), Spare(), row_parameters=2)
    for run in (engine.evaluate, engine.evaluate_densely):
        with pytest.raises(InputError, match=re.escape(message)):
            run(plan, torch.eye(3), torch.eye(3), None, *torch.ones(3, 3).unbind())


def test_the_page_lists_every_refusal() -> None:
    """Every reason that random settings are refused for begins as a row of the table does."""
    messages = [message for _, message in refused_settings()]
    assert len(messages) >= 15
    for number in range(NUMBER * PARTS):
        for reason in refusals(Problem(number).spec, ROW_NUMBERS, COLUMN_NUMBERS):
            assert any(message in reason for message in messages), reason


def test_the_page_shows_a_batch_its_way() -> None:
    """At most ten steps, whose functions are in the files that the page names."""
    table = PAGE.read_text().partition("| step | function | file |")[2].partition("\n\n")[0]
    steps = re.findall(r"^\| \d+\. .*? \| (.*) \| (.*) \|$", table, re.MULTILINE)
    assert 5 <= len(steps) <= 10
    package = Path(engine.__file__).parents[1]
    for functions, files in steps:
        names = [file if "/" in file else f"engine/{file}" for file in re.findall("`(.*?)`", files)]
        paths = [path for name in names for path in (package / name, package / Path(name).name) if path.exists()]
        source = "".join(
            text.read_text() for path in paths for text in ([path] if path.is_file() else path.glob("*.py"))
        )
        for function in re.findall(r"`(?:\w+\.)?(\w+)`", functions):
            assert re.search(rf"(def|class) {function}\b", source), f"{function} is not in {files}"


def test_tensors_that_do_not_fit_a_spec_are_refused() -> None:
    spec = LossSpec(maps.Linear(-1.0), maps.Linear(1.0))
    samples = Plan(spec, ClassPairs.among_samples(torch.arange(3)), Spare())
    classes = samples._replace(pairs=ClassPairs.to_classes(torch.arange(3), 3))
    eye, bias = torch.eye(3), torch.ones(3)
    cases: list[tuple[Plan, LossSpec, Any, Any, str]] = [
        (samples, spec, None, bias, "a bias belongs to columns"),
        (samples, spec._replace(normalize=(True, False)), None, None, "one normalisation"),
        (classes, spec._replace(pool=Nearest(1)), eye, bias, "a pool is over class vectors"),
        (classes, spec._replace(positive=maps.Distance("l2")), eye, bias, "a function of the cosine"),
    ]
    for plan, changed, columns, bias, message in cases:
        for run in (engine.evaluate, engine.evaluate_densely):
            with pytest.raises(InputError, match=message):
                run(plan._replace(spec=changed), eye, columns, bias)
