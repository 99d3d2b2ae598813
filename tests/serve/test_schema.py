"""The API against its own schema: requests made up from it, right ones and wrong ones, by schemathesis."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearfar.serve.app import create_app
from tests.serve.making import FREE, TOKEN, bearer, picture, served

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
BOUNDED = settings(max_examples=8, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
ADDRESSES = {
    "GET /api/state": {200},
    "GET /api/runs/{run}/items": {200, 404},
    "GET /api/runs/{run}/classes": {200, 404},
    "GET /api/runs/{run}/items/{item}/picture": {200, 404},
    "POST /api/runs/{run}/search": {200, 404, 422},
    "POST /api/runs/{run}/identify": {200, 404, 422},
    "GET /api/runs/{run}/items/{item}/neighbours": {200, 404},
    "GET /api/runs/{run}/mistakes": {200, 404},
    "GET /api/runs/{run}/thresholds": {200, 404},
    "GET /api/runs/{run}/map": {200, 404},
    "GET /api/access": {204},
    "POST /api/runs/{run}/items": {201, 404, 422},
    "DELETE /api/runs/{run}/items/{item}": {200, 404},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return served(tmp_path_factory.mktemp("served"), classes=8, each=6)


@pytest.fixture(scope="module")
def schema(run):
    app = create_app({"a": run}, token=TOKEN, names=("localhost", "testserver"), limits=FREE, prepare=False)
    return schemathesis.openapi.from_asgi("/api/openapi.json", app)


def operations(schema):
    return {one.ok().label: one.ok() for one in schema.get_all_operations()}


def test_every_address_is_in_the_schema(schema) -> None:
    assert set(operations(schema)) == set(ADDRESSES)


@pytest.mark.parametrize("address", ADDRESSES)
def test_right_requests(schema, run, address: str) -> None:
    """Half of them name an image that is there, and send a picture that is one."""
    seen: Counter[int] = Counter()
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [
        not_a_server_error,
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
        status_code_conformance,
    ]
    operation = operations(schema)[address]

    @BOUNDED
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE), real=st.integers(0, 3))
    def ask(case, real: int) -> None:
        keys = run.gallery.catalogue.keys
        if real:
            if "run" in case.path_parameters:
                case.path_parameters["run"] = "a"
            if "item" in case.path_parameters:
                case.path_parameters["item"] = keys[real]
            if operation.method.upper() == "POST":
                case.body = picture(seed=real)
        answer = case.call_and_validate(headers=bearer(), checks=checks)
        seen[answer.status_code] += 1

    ask()
    assert set(seen) <= ADDRESSES[address]
    assert seen[min(ADDRESSES[address])] >= 1  # some were answered well


@pytest.mark.parametrize("address", [one for one in ADDRESSES if one not in ("GET /api/state", "GET /api/access")])
def test_wrong_requests(schema, run, address: str) -> None:
    before = len(run.gallery.index)
    statuses: Counter[int] = Counter()
    operation = operations(schema)[address]

    @BOUNDED
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    def ask(case) -> None:
        answer = case.call(headers=bearer())
        statuses[answer.status_code] += 1
        assert answer.status_code < 300 or isinstance(answer.json()["detail"], str)

    ask()
    assert max(statuses) < 500
    assert sum(count for status, count in statuses.items() if status >= 400) >= 1
    # What is wrong may be a parameter that nobody knows, which does no harm: only what was answered to be added, was.
    assert before <= len(run.gallery.index) <= before + statuses[201]
