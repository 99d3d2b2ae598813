"""The report in a real browser, Chromium, where there is one: NEARFAR_BROWSER names it, or it is found by its name."""

import os
import shutil

import numpy as np
import pytest

from nearfar.report.run import write_run_report
from tests.report.making import HOSTILE, embeddings, run_folder, table

BROWSER = os.environ.get("NEARFAR_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None
)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    made = table(names=tuple(f"{HOSTILE} {i} {'long' * 12}" for i in range(6)))
    folder = run_folder(tmp_path_factory.mktemp("runs") / "run")
    return write_run_report(folder, embeddings(made.labels, 1.0), made)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module", params=["wide", "telephone", "dark"])
def opened(request, browser, report):
    """The page, and everything it complained of or asked for."""
    size = {"width": 390, "height": 844} if request.param == "telephone" else {"width": 1200, "height": 900}
    scheme = "dark" if request.param == "dark" else "light"
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page = context.new_page()
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda one: heard.append(one.url) if not one.url.startswith(("data:", "file:")) else None)
    page.goto(report.as_uri())
    page.wait_for_load_state()
    yield page, heard, request.param
    context.close()


def test_the_page_works(opened) -> None:
    page, heard, kind = opened
    assert heard == []
    assert page.evaluate("window.broken") is None  # what the names of classes would have run
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    shown = page.evaluate("[...document.images].map(i => i.complete && i.naturalWidth)")
    assert len(shown) > 50 and min(shown) > 0
    drawn = page.evaluate(
        "[...document.querySelectorAll('figure svg, .map svg')].map(e => e.getBoundingClientRect().height)"
    )
    assert len(drawn) == 6 and min(drawn) > 100
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, paper[4:-1].split(","))) < 60) == (kind == "dark")

    # Letters are dark on light and light on dark, those of figures too.
    ink = page.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
    light = np.mean([int(part) for part in ink[4:-1].split(",")]) > 120
    assert light == (kind == "dark")

    words = page.evaluate(
        "Math.min(...[...document.querySelectorAll('figure svg text')].map(e => e.getBoundingClientRect().height))"
    )
    assert words > 9  # to be read, on a telephone too


def test_pointing_at_the_map_shows_the_picture(opened) -> None:
    page, heard, _ = opened
    tip, plan = page.locator(".map .tip"), page.locator(".map svg")
    assert not tip.is_visible()
    plan.scroll_into_view_if_needed()
    box = plan.bounding_box()
    x, y, width, name = page.evaluate(
        "(() => { const d = JSON.parse(document.querySelector('.map script').textContent);"
        " return [d.x[5], d.y[5], d.width, d.names[d.label[5]]]; })()"
    )
    scale = box["width"] / width
    page.mouse.move(box["x"] + x * scale, box["y"] + y * scale)
    assert tip.is_visible()
    assert name in tip.inner_text()
    assert page.evaluate("getComputedStyle(document.querySelector('.tip i')).backgroundImage").startswith(
        'url("data:image/webp'
    )
    assert page.locator(".map .same").count() == 8
    assert page.locator(".map .here").count() == 1
    inside = tip.bounding_box()
    assert inside["x"] >= 0 and inside["x"] + inside["width"] <= page.viewport_size["width"]
    page.mouse.move(box["x"] + 5, 1)
    assert not tip.is_visible()
    assert heard == []


def test_the_slider_tells_precision_and_recall(opened) -> None:
    page, heard, _ = opened
    slider, told = page.locator(".threshold input"), page.locator(".threshold output")
    assert told.inner_text().startswith("At a threshold of 0.61")  # the calibrated one
    slider.fill("0")
    assert (
        "2,256 of 2,256 pairs are accepted: 14.9 % of them are of the same class (precision), and 100.0 %"
        in told.inner_text()
    )
    cursor, plot = (page.locator(f".threshold .{name}").bounding_box() for name in ("cursor", "plot"))
    assert (cursor["x"] - plot["x"]) / plot["width"] == pytest.approx(0.125, abs=0.01)
    slider.fill(slider.get_attribute("max"))
    assert "no pair is accepted" in told.inner_text()
    assert heard == []
