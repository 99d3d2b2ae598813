"""The page in a real browser, Chromium, where there is one: NEARFAR_BROWSER names it, or it is found by its name.

Two runs that were trained on glyphs, served by the command; wide and light, and as narrow as a telephone and dark.
"""

import os
import re
import shutil

import pytest

from nearfar.serve.server import open_run
from nearfar.training.runs import Run
from tests.serve.listening import started

BROWSER = os.environ.get("NEARFAR_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None
)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
PATIENCE = 120_000  # ms, for machines that are busy
NO_OVERFLOW = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
CONTRAST = """() => {
  // The least contrast of all text to what is behind it, by WCAG; colours as the browser computes them.
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return canvas.getImageData(0, 0, 1, 1).data; };
  const light = (colour) => [...rgba(colour)].slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (rgba(c)[3] === 255) return c; } return getComputedStyle(document.body).backgroundColor; };
  let worst = [99, ""];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || e.closest("svg, .unseen, noscript, :disabled")) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, `${e.tagName} ${e.className} ${e.textContent.slice(0, 40)}`];
  }
  return worst;
}"""
NAMELESS = """() => [...document.querySelectorAll("a, button, input, canvas, img, dialog[open]")]
  .filter((e) => e.checkVisibility() && !(e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.textContent.trim() || e.labels?.length || e.hasAttribute("alt")))
  .map((e) => e.outerHTML)"""


@pytest.fixture(scope="module")
def server(glyph_runs):
    """The runs have too few classes to calibrate a threshold, so one is set."""
    index = open_run("a", Run(glyph_runs[0])).gallery.index
    index.set_threshold({"threshold": 0.8, "precision": 0.9})
    with started(*map(str, glyph_runs), "--rate", "0") as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture(scope="module", params=["wide", "telephone"])
def opened(request, browser, server):
    """A page that has the token, and everything it complained of or asked for outside."""
    size = {"width": 390, "height": 844} if request.param == "telephone" else {"width": 1280, "height": 860}
    scheme = "dark" if request.param == "telephone" else "light"
    context = browser.new_context(viewport=size, color_scheme=scheme, has_touch=request.param == "telephone")
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda one: heard.append(one.url) if not one.url.startswith((server.address, "blob:")) else None)
    page.goto(f"{server.address}/#token={server.token}")
    page.wait_for_selector("html[data-ready]")
    yield page, heard, request.param
    assert heard == []
    context.close()


def at(page, server, address: str) -> None:
    page.goto(f"{server.address}/{address}")
    if address == "#/search":
        page.get_by_role("button", name="Side by side").click()


def looks_right(page) -> None:
    assert page.evaluate(NO_OVERFLOW)
    ratio, where = page.evaluate(CONTRAST)
    assert ratio >= 4.5, where
    assert page.evaluate(NAMELESS) == []


def test_beginning(opened, server) -> None:
    page, _, kind = opened
    assert server.token not in page.url  # it does not stay in the address
    at(page, server, "#/search")
    page.wait_for_selector("#results .card:not(.skeleton) img")
    assert page.locator("#results .card:not(.skeleton)").count() == 12
    assert "288 images of 36 classes" in page.locator("#results").inner_text()
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, paper[4:-1].split(","))) < 60) == (kind == "telephone")
    page.wait_for_selector("#threshold .value >> nth=1")
    looks_right(page)


def test_upload_slider_and_both_runs(opened, server, glyph_folder) -> None:
    page, _, _ = opened
    at(page, server, "#/search")
    path = sorted(glyph_folder.rglob("*.png"))[9]
    page.set_input_files("#file", str(path))
    for run in "ab":
        page.wait_for_selector(f".column[data-run={run}] .card[data-similarity]")
        first = page.locator(f".column[data-run={run}] .card").first
        assert float(first.get_attribute("data-similarity")) > 0.999  # itself
        assert first.locator(".label").inner_text() == path.parent.name
    looks_right(page)

    column = page.locator(".column[data-run=a]")
    slider = page.locator("#threshold [data-run=a] input")
    slider.wait_for()
    told = page.locator("#threshold [data-run=a] .value")
    calibrated = float(told.inner_text())
    matches = column.locator(".match").count()
    assert f"Match: {path.parent.name}" in column.locator(".verdict").inner_text()
    precision, recall = (page.locator(f"#threshold [data-run=a] .{name} b") for name in ("precision", "recall"))
    slider.fill("0")  # everything is the same
    assert column.locator(".match").count() == 24 and column.locator(".apart").count() == 0
    assert recall.inner_text() == "100.0 %"
    all_the_same = float(precision.inner_text().removesuffix(" %"))
    slider.fill(slider.get_attribute("max"))
    assert float(told.inner_text()) > calibrated and column.locator(".match").count() <= 1
    assert recall.inner_text() == "0.0 %"
    page.locator("#threshold [data-run=a]").get_by_role("button", name="calibrated").click()
    assert float(told.inner_text()) == calibrated and column.locator(".match").count() == matches
    assert float(precision.inner_text().removesuffix(" %")) > all_the_same

    page.get_by_role("button", name=re.compile("untrained")).click()  # the second run alone
    page.wait_for_selector(".column[data-run=b] .card[data-similarity]")
    assert page.locator(".column").count() == 1
    page.get_by_role("button", name="Side by side").click()
    page.wait_for_selector(".column[data-run=a] .card[data-similarity]")
    assert page.locator(".column").count() == 2


def test_who_it_is(opened, server, glyph_folder) -> None:
    """Named where there is evidence enough, none of them where there is not; and where it cannot be said, why."""
    page, _, _ = opened
    said = set()
    for path in sorted(glyph_folder.rglob("*.png"))[::37]:
        at(page, server, "#/search")
        page.set_input_files("#file", str(path))
        headers = {"Content-Type": "image/png"}
        asked = page.request.post(f"{server.address}/api/runs/a/identify", data=path.read_bytes(), headers=headers)
        found = asked.json()
        who = page.locator(".column[data-run=a] .who.panel")
        who.wait_for()
        told = who.inner_text()
        title = {"enrolled": found["who"], "unsure": f"Perhaps {found['nearest']}"}
        assert told.startswith(title.get(found["verdict"], "None of the enrolled classes"))
        assert f"{100 * found['probability']:.0f} %" in told and f"{found['nearest']} is at " in told
        said.add(found["verdict"])
        page.wait_for_selector(".column[data-run=b] .who:not(.panel)")
        other = page.locator(".column[data-run=b] .who").inner_text()
        assert other.startswith("Identification is not calibrated: ")
        looks_right(page)
    assert {"enrolled", "none"} <= said
    who.locator("summary").click()
    assert "that the model was not trained on" in who.inner_text()
    looks_right(page)
    with page.expect_response(re.compile(r"identify\?far=0\.2")):
        who.locator("select").select_option("0.2")
    page.wait_for_function("document.activeElement.tagName === 'SELECT' && document.activeElement.value === '0.2'")
    page.locator(".column[data-run=a] .card > a").first.click()  # an image of the gallery, whose class is known
    page.wait_for_url(re.compile("item="))
    page.wait_for_selector(".column[data-run=a] .card[data-similarity]")
    assert page.locator(".who").count() == 0


def test_a_picture_while_the_examples_are_still_read(opened, server, glyph_folder) -> None:
    """What was asked before is forgotten, however far its answer had come."""
    page, _, _ = opened
    for path in sorted(glyph_folder.rglob("*.png"))[:30]:
        at(page, server, "#/search")
        page.set_input_files("#file", str(path))
        page.wait_for_selector(".column[data-run=a] .card[data-similarity]")


def test_what_is_no_picture_is_told(opened, server, tmp_path) -> None:
    page, heard, _ = opened
    at(page, server, "#/search")
    (tmp_path / "words.txt").write_text("hello")
    page.set_input_files("#file", str(tmp_path / "words.txt"))
    page.get_by_text("words.txt is not a picture.").wait_for()
    (tmp_path / "broken.png").write_bytes(b"\x89PNG nothing")
    page.set_input_files("#file", str(tmp_path / "broken.png"))
    page.wait_for_selector(".column[data-run=a] [role=alert]")
    assert "cannot be read" in page.locator(".column[data-run=a] [role=alert]").inner_text()
    page.wait_for_selector(".column[data-run=b] [role=alert]")
    for _ in range(PATIENCE // 50):  # its notes come when they come
        if len(heard) >= 2:
            break
        page.wait_for_timeout(50)
    expected = [words for words in heard if "422" in words]  # the browser's own note of each refusal
    assert len(expected) == 2 and len(heard) == 2
    heard.clear()


def test_pasting_and_dropping(opened, server, glyph_folder) -> None:
    page, _, _ = opened
    for gesture in ("paste", "drop"):
        at(page, server, "#/search")
        page.wait_for_selector("#clear", state="hidden")
        content = list(sorted(glyph_folder.rglob("*.png"))[3].read_bytes())
        page.evaluate(
            """([gesture, content]) => {
              const data = new DataTransfer();
              data.items.add(new File([new Uint8Array(content)], "given.png", { type: "image/png" }));
              const event = gesture === "paste"
                ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })
                : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
              document.body.dispatchEvent(event);
            }""",
            [gesture, content],
        )
        page.wait_for_selector(".column[data-run=a] .card[data-similarity]")
        assert page.locator("#query-name").inner_text() == "given.png"


def test_gallery_and_keys(opened, server) -> None:
    page, _, kind = opened
    at(page, server, "#/gallery")
    page.wait_for_selector("#gallery-grid .card:not(.skeleton)")
    assert page.locator("#gallery-grid .card:not(.skeleton)").count() == 36
    looks_right(page)
    page.locator("main").focus()
    page.keyboard.press("/")
    page.keyboard.type("u+0")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"#/gallery\?class=U%2B0"))
    page.wait_for_selector("#gallery-grid .card[data-item]")
    assert page.locator("#gallery-grid .card").count() == 8
    first, second = (page.locator("#gallery-grid .card > a").nth(place) for place in (0, 1))
    first.focus()
    page.keyboard.press("ArrowRight")
    assert second.evaluate("e => e === document.activeElement")
    page.keyboard.press("End")
    page.keyboard.press("Home")
    assert first.evaluate("e => e === document.activeElement")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert first.evaluate("e => e === document.activeElement")
    label = first.locator(".label").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_selector(".column[data-run=b] .card[data-similarity]")
    assert label in page.locator("#query-name").inner_text()
    assert page.locator(".column[data-run=a] .card").count() == 24
    looks_right(page)
    page.locator("main").focus()
    page.keyboard.press("Escape")
    page.wait_for_selector("#query", state="hidden")
    page.keyboard.press("3")
    page.wait_for_selector("#mistakes-body .worst")
    if kind != "telephone":  # which has no keys
        page.keyboard.press("?")
        assert page.locator("#keys-dialog").is_visible()
        page.keyboard.press("Escape")


def test_mistakes(opened, server) -> None:
    page, _, _ = opened
    at(page, server, "#/mistakes")
    page.get_by_role("button", name=re.compile("untrained")).click()  # it makes more of them
    page.wait_for_selector("#mistakes-body .worst")
    about = page.locator("#mistakes-about").inner_text()
    assert "The run’s test images" in about and "of 144 queries" in about
    strip = page.locator(".worst > li").first
    assert strip.locator(".strip-query").count() == 1 and strip.locator(".wrong").count() >= 1
    assert strip.locator(".card").nth(1).get_attribute("class") == "card wrong"  # the nearest is not of its class
    looks_right(page)
    page.get_by_role("tab", name="Confused classes").click()
    assert page.locator(".pair").count() >= 1 and not page.locator(".worst").is_visible()
    looks_right(page)
    page.get_by_role("tab", name="Worst queries").click()
    strip.locator(".strip-query > a").click()
    page.wait_for_selector(".column .card[data-similarity]")


def test_the_map_searches(opened, server) -> None:
    page, _, kind = opened
    at(page, server, "#/map")
    canvas = page.locator(".map canvas")
    canvas.wait_for()
    looks_right(page)
    canvas.scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('.map canvas').width > 100")
    box = canvas.bounding_box()
    x, y = page.evaluate("document.querySelector('.map canvas').pointAt(5)")
    assert 0 < x < box["width"] and 0 < y < box["height"]
    drawn = page.evaluate(
        """() => { const c = document.querySelector(".map canvas"); return new Set(c.getContext("2d").getImageData(0, 0, c.width, c.height).data).size; }"""
    )
    assert drawn > 3
    if kind == "telephone":
        page.touchscreen.tap(box["x"] + x, box["y"] + y)
        page.wait_for_selector(".tip:not([hidden])")  # what it would search with
        page.touchscreen.tap(box["x"] + x, box["y"] + y)
    else:
        page.mouse.move(box["x"] + x, box["y"] + y)
        page.wait_for_selector(".tip:not([hidden])")
        canvas.focus()
        page.keyboard.press("+")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector(".tip:not([hidden])")
        page.keyboard.press("Enter")
    page.wait_for_selector(".column .card[data-similarity]")
    assert "item=" in page.url


def test_adding_and_taking_away(opened, server, tmp_path) -> None:
    from tests.serve.making import picture

    page, _, kind = opened
    at(page, server, "#/search")
    (tmp_path / "own.png").write_bytes(picture(size=(24, 24), seed={"wide": 71, "telephone": 72}[kind]))
    page.set_input_files("#file", str(tmp_path / "own.png"))
    page.wait_for_selector(".column[data-run=b] .card[data-similarity]")
    name = f"My class {kind} <b>"
    page.fill("#add-label", name)
    page.get_by_role("button", name="Add", exact=True).click()
    own = page.locator(".column[data-run=a] .card", has_text=name)
    own.wait_for()
    assert float(own.get_attribute("data-similarity")) > 0.999
    assert "289 images" in page.locator("#runs").text_content()
    for run in "ab":
        card = page.locator(f".column[data-run={run}] .card", has_text=name)
        card.locator("a").focus()
        page.keyboard.press("Delete")
        dialog = page.locator("#remove-dialog")
        dialog.wait_for()
        assert name in dialog.inner_text()
        dialog.get_by_role("button", name="Remove").click()
        page.wait_for_function(
            "([run, name]) => ![...document.querySelectorAll(`.column[data-run=${run}] .card`)].some((e) => e.dataset.label === name)",
            arg=[run, name],
        )
    at(page, server, f"#/gallery?class={name.replace(' ', '%20').replace('<', '%3C').replace('>', '%3E')}")
    page.get_by_text("There is no such class").wait_for()


def test_without_the_token_it_is_asked_for(opened, server) -> None:
    page, heard, _ = opened
    page.get_by_role("button", name="Changes are allowed: lock").click()
    at(page, server, "#/gallery?images")
    page.wait_for_selector("#gallery-grid .card[data-item]")
    assert page.locator("#gallery-grid .remove").count() == 0
    page.locator("#gallery-grid .card > a").first.focus()
    page.keyboard.press("Delete")
    page.wait_for_selector("#access-dialog[open]")
    looks_right(page)
    page.fill("#token", "a wrong one")
    page.get_by_role("button", name="Unlock").click()
    page.get_by_text("the token is wrong").wait_for()
    assert len(heard) == 1 and "401" in heard.pop()
    page.fill("#token", server.token)
    page.get_by_role("button", name="Unlock").click()
    page.locator("#remove-dialog").get_by_role("button", name="Cancel").click()
    page.wait_for_selector("#gallery-grid .remove", state="attached")


def test_light_and_dark_by_hand(opened, server) -> None:
    page, _, kind = opened
    paper = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for _ in range(3):
        page.locator("#theme").click()
        seen.append(page.evaluate(paper))
    assert seen[0] == "rgb(255, 255, 255)" and seen[1] == "rgb(20, 23, 27)"
    assert seen[2] == (seen[1] if kind == "telephone" else seen[0])  # as the system
