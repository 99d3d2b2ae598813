"""The page: what is on it, that nothing on it can break out, and that it asks the network for nothing."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from nearfar.report import Markup, Page, Picture
from nearfar.report.markup import data_uri, json_text, text

HOSTILE = "</script><script>alert(1)</script><img src=http://x.example/ onerror='alert(2)'>\"&"


class Elements(HTMLParser):
    """Every element with its attributes, and all text, as a browser would see them."""

    def __init__(self, page: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open[-1:] == ["script"] else self.words).append(data)

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def full_page(words: str) -> Page:
    """A page with `words` in every place that takes text."""
    page = Page(words, words)
    section = page.section(words)
    section.paragraph(words)
    section.subtitle(words)
    section.table([words, "n"], [[words, 1.0], [words, words]], caption=words, bold=[0])
    section.table(["a"], [[words]], fold=words)
    section.figure(Markup("<svg viewBox='0 0 1 1'></svg>"), words)
    section.figure(b"\x89PNG\r\n\x1a\nrest", words, wide=True)
    section.grid([Picture(data_uri("image/webp", b"x"), words, "right", words), Picture(None, words)], heading=words)
    section.grids([(words, [Picture(None, words, "wrong")])])
    section.preformatted(words)
    section.folded(words, words)
    return page


def test_hostile_text_stays_text_everywhere() -> None:
    plain, hostile = Elements(full_page("plain").html()), Elements(full_page(HOSTILE).html())
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert [list(attributes) for _, attributes in hostile.elements] == [list(a) for _, a in plain.elements]
    assert len(hostile.scripts) == 1
    shown = "".join(hostile.words)
    assert shown.count(HOSTILE) == "".join(plain.words).count("plain") > 15  # as it was written, no more, no less


def test_every_element_is_closed_in_order() -> None:
    assert Elements(full_page("x").html()).open == []


def test_text_that_utf8_cannot_write_is_replaced() -> None:
    page = Page("bad \udcff name\x00\x1b[31m \ud800").html()
    page.encode("utf-8")
    assert "bad \ufffd name\ufffd\ufffd[31m \ufffd" in page


def test_policy_allows_this_script_alone() -> None:
    page = Elements(full_page("x").html())
    (script,) = page.scripts
    policy = next(a["content"] for a in page.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_nothing_points_outside() -> None:
    page = full_page("x").html()
    addresses = re.findall(r'(?:src|href)="?([^"\s>]+)|url\(["\']?([^)]+)', page)
    assert addresses
    assert all((a or b).startswith(("data:", "#")) or "${" in (a or b) for a, b in addresses)


def test_contents_lead_to_the_sections() -> None:
    page = Page("t")
    page.section("One & only")
    page.section("Two")
    found = Elements(page.html())
    targets = [a["href"] for a in found.named("a")]
    assert targets == [f"#{section['id']}" for section in found.named("section")] == ["#part1", "#part2"]


def cells(page: Page) -> list[tuple[str, str, str]]:
    return re.findall(r"<(t[hd])(?: scope=\w+)?( class=number)?>(.*?)</t[hd]>", page.html())


def test_numbers_stand_to_the_right_in_columns_of_numbers() -> None:
    page = Page("t")
    page.section("s").table(
        ["loss", "recall", "change", "mixed"],
        [["A", 0.123456, "+3.1 ± 0.4", 1], ["B", None, "(-2.5)", "two"], ["C", 1_234_567, "12.5 %", ""]],
    )
    right = [bool(number) for _, number, _ in cells(page)]
    assert right == [False, True, True, False] * 4
    assert [value for *_, value in cells(page)][5::4] == ["0.1235", "", "1,234,567"]


def test_a_table_must_be_whole() -> None:
    with pytest.raises(ValueError, match=r"row 1 has 1 cells, but the header has 2: \['b'\]"):
        Page("t").section("s").table(["x", "y"], [["a", 1], ["b"]])


def test_only_markup_goes_in_as_it_is() -> None:
    section = Page("t").section("s")
    with pytest.raises(TypeError, match="only Markup"):
        section.markup("<b>bold</b>")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"SVG of style\.svg"):
        section.figure("<svg></svg>", "caption")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="PNG"):
        section.figure(b"GIF89a", "caption")
    assert text(Markup("<b>")) == "<b>"


def test_right_and_wrong_differ_by_more_than_colour() -> None:
    page = Page("t")
    page.section("s").grid([Picture(None, mark="right"), Picture(None, mark="wrong")])
    css = page.html()
    assert re.search(r"\.right \.frame \{ border: 3px solid", css)
    assert re.search(r"\.wrong \.frame \{ border: 3px dashed", css)
    assert r'.right .frame::after { content: "\2713"' in css
    assert r'.wrong .frame::after { content: "\2717"' in css


def test_figures_in_a_row_and_wide_ones_alone() -> None:
    page = Page("t")
    section = page.section("s")
    drawing = Markup("<svg></svg>")
    section.figure(drawing, "a")
    section.figure(drawing, "b")
    section.figure(drawing, "c", wide=True)
    section.figure(drawing, "d")
    rows = re.findall(r"<div class=figures>(.*?)</figure></div>", page.html())
    assert [re.findall(r"<figcaption>(\w)", row) for row in rows] == [["a", "b"], ["d"]]
    assert "<figure class=wide><div class=scroll tabindex=0><svg></svg></div><figcaption>c" in page.html()


def test_json_cannot_end_its_element() -> None:
    assert "<" not in json_text({"a": HOSTILE, "b": ["<!--", "</SCRIPT>"]})
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text([float("nan")])


def test_a_page_replaces_the_one_before_and_leaves_nothing_else(tmp_path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    page = full_page("x")
    assert page.write(path) == path
    assert path.read_text(encoding="utf-8") == page.html()
    assert list(tmp_path.iterdir()) == [path]
