"""The sections of a run's report on what its embeddings find."""

from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.data import SPLITS, Table
from nearfar.data.columns import Files
from nearfar.evaluation import Diagnosis, diagnose
from nearfar.evaluation.hamming import signs
from nearfar.foundation.run_folder import RunFolder
from nearfar.imaging.sources import describe
from nearfar.report import figures, layout, queries, style, thumbnails, widgets
from nearfar.report.boundaries import boundary_of_run
from nearfar.report.markup import Markup
from nearfar.report.page import Mark, Page, Picture, Section
from nearfar.report.thresholds import accepted

Floats = npt.NDArray[np.float32]
EXAMPLES = 5  # queries of each group
NEIGHBOURS = 8  # pictures found by each
CONFUSED = 8  # pairs of classes
ANCHORS = 1_500  # rows compared with all others, for histograms
SCATTERED = 800  # queries drawn in the plane of similarities
BINS = 400  # of similarities
SQUARE, ACROSS = 48, 32  # pixels of a picture of the map, and how many to a row of their sheet

MISTAKE: tuple[Mark, Mark] = ("query", "wrong")


class Measured:
    """The sections on what the embeddings find."""

    def __init__(self, embeddings: Floats, table: Table, run: RunFolder, seed: int, *, binary: bool = False):
        self.x, self.binary = signs(embeddings) if binary else embeddings, binary
        self.table, self.run, self.seed = table, run, seed
        self.labels = table.labels
        self.rows = rows = np.flatnonzero(np.isfinite(embeddings).all(1) & (table.labels >= 0))
        self.queries = self.gallery = rows
        if {"query", "gallery"} <= set(table.split_names):
            self.queries = rows[table.split_ids[rows] == SPLITS.index("query")]
            self.gallery = rows[table.split_ids[rows] == SPLITS.index("gallery")]
        self.pictures: dict[int, Markup | None] = {}

    def add_to(self, page: Page) -> None:
        if len(self.rows) < 2:
            return
        asked = queries.drawn_queries(self.queries, len(self.gallery), self.seed)
        found = self._search(asked, self.gallery, cameras=self.table.camera, k=NEIGHBOURS)
        diagnosis = diagnose(
            self.x if len(self.rows) == len(self.x) else self.x[self.rows],
            self.labels[self.rows],
            bins=BINS,
            anchors=ANCHORS,
            seed=self.seed,
            progress=False,
        )
        self._similarities(page.section("Similarities"), found, diagnosis)
        if len(found.queries):
            self._examples(page.section("Queries"), found)
            self._confusions(page.section("Confused classes"), found)
        if len(self.rows) >= layout.FEWEST_POINTS:
            self._map(page.section("Map"))
        self._threshold(page.section("Threshold"), diagnosis)

    def _search(self, asked: queries.Rows, gallery: queries.Rows, **options: Any) -> queries.Found:
        return queries.search(self.x, self.labels, asked, gallery, binary=self.binary, **options)

    def _similarities(self, section: Section, found: queries.Found, diagnosis: Diagnosis) -> None:
        anchors = len(diagnosis.anchors)
        drawn = "each image" if anchors == len(self.rows) else f"each of {anchors:,} images drawn at random"
        similarity = (
            "Similarity of the codes, 1 − 2 · (Hamming distance) / bits," if self.binary else "Cosine similarity"
        )
        section.figure(
            style.svg(figures.similarities(diagnosis.histogram, self.run.threshold)),
            f"{similarity} of {drawn} with all others of its class, and with all of other classes. The less the "
            "two overlap, the better one threshold serves all.",
        )
        if len(found.queries):
            chosen = np.arange(len(found.queries))
            if len(chosen) > SCATTERED:
                chosen = np.sort(np.random.default_rng(self.seed).choice(chosen, SCATTERED, replace=False))
            line, between = boundary_of_run(self.run)
            words = "" if line is None else f" Dashed: the boundary of {line.loss}, {line.formula}"
            words += f", which it draws between {between}." if line is not None and between else "." if words else ""
            section.figure(
                style.svg(figures.plane(found.negative[chosen], found.positive[chosen], line)),
                f"{len(chosen):,} queries by the similarity of the nearest image of another class (s_n) and of their "
                f"own (s_p). Above the diagonal, the first image found is right.{words}",
            )
        told = diagnosis.summary()
        shown = {
            "alignment": "mean squared distance within classes: less is tighter",
            "uniformity": "log of the mean of exp(−2 d²): less is more evenly spread",
            "density": "mean distance within classes over that between their centres",
            "effective_rank": f"directions in use, of {diagnosis.dimension}",
            "hub_share": "of all places among the ten nearest, those held by images twice as popular as the mean",
            "orphan_share": "of all images, those that are among the ten nearest of none",
        }
        section.table(
            ["measure", "value", "meaning"],
            [[name.replace("_", " "), told[name], words] for name, words in shown.items()],
        )

    def _examples(self, section: Section, found: queries.Found) -> None:
        section.paragraph(
            f"Of {len(found.queries):,} queries{self._drawn(found)}: those whose nearest match is nearer than anything "
            "else by the most (best), by about the median (typical), and those that are most wrong (worst); at most "
            f"{EXAMPLES} each, of different classes. The first picture is the query; then what it finds, with "
            "its similarity. Right ones have a solid border and ✓, wrong ones a dashed border and ✗."
        )
        headings = {"best": "Best", "typical": "Typical", "worst": "Worst"}
        for name, places in queries.examples(found, self.labels, EXAMPLES).items():
            if not len(places):
                continue
            section.subtitle(headings[name])
            for place in places:
                row = int(found.queries[place])
                cells = [Picture(self._picture(row), self.table.label_name(row), "query", self._name(row))]
                for other, similarity in zip(found.nearest[place], found.similarity[place], strict=True):
                    if other >= 0:
                        right = self.labels[other] == self.labels[row]
                        label = self.table.label_name(int(other))
                        words = f"{similarity:.2f}" + ("" if right else f" {label}")
                        title = f"{'right' if right else 'wrong'}: {label}, {self._name(int(other))}"
                        cells.append(Picture(self._picture(int(other)), words, "right" if right else "wrong", title))
                section.grid(cells)

    def _drawn(self, found: queries.Found) -> str:
        return " drawn at random" if len(found.queries) < len(self.queries) else ""

    def _confusions(self, section: Section, found: queries.Found) -> None:
        pairs = queries.confusions(found, self.labels, CONFUSED)
        if not pairs:
            section.paragraph(f"None: the nearest image of every query{self._drawn(found)} is of its own class.")
            return
        names = self.table.label_names
        section.paragraph(
            f"Pairs of classes by how often a query of one finds an image of the other first; the {len(pairs)} most "
            "frequent, each with its most confident mistake. What looks the same to you too may be a wrong label."
        )
        grids = []
        for pair in pairs:
            cells = [
                Picture(self._picture(row), self.table.label_name(row), mark, self._name(row))
                for row, mark in zip(pair.example, MISTAKE, strict=True)
            ]
            share = f"{100 * pair.mistaken / pair.queries:.0f}\N{NO-BREAK SPACE}%"
            heading = f"{names[pair.first]} and {names[pair.second]}: {pair.mistaken:,} of {pair.queries:,} queries"
            grids.append((f"{heading} ({share})", cells))
        section.grids(grids)

    def _map(self, section: Section) -> None:
        chosen = self.rows[layout.sample(self.labels[self.rows], self.seed)]
        if len(chosen) < layout.FEWEST_POINTS:
            return
        places, method = layout.flat(self.x[chosen], self.seed)
        nearest = self._search(chosen, self.rows, k=1)
        found = np.full(len(chosen), -1, np.int64)
        found[np.searchsorted(chosen, nearest.queries)] = self.labels[nearest.nearest[:, 0]]
        sheet = None
        if self.table.images is not None:
            sheet = thumbnails.sheet((self.table.images[int(row)] for row in chosen), SQUARE, ACROSS)
        whole = "All" if len(chosen) == len(self.rows) else "Drawn at random, class by class:"
        section.paragraph(
            f"{whole} {len(chosen):,} images of {len(np.unique(self.labels[chosen])):,} classes, laid out by {method} "
            "so that neighbours stay neighbours; distances between groups mean little. Point at one, or touch it, "
            "to see it and its class. A dot: its nearest image is of its own class; a cross: it is not."
        )
        section.markup(
            widgets.embedding_map(places, self.labels[chosen], found, list(self.table.label_names), sheet, ACROSS)
        )

    def _threshold(self, section: Section, diagnosis: Diagnosis) -> None:
        curve = accepted(diagnosis.histogram)
        if curve is None:
            section.paragraph("No two images are of one class, so no threshold can be judged.")
            return
        chosen = self.run.threshold
        section.paragraph(
            "From which similarity on do two images show the same? Move the slider. Precision depends on how many of "
            "the compared pairs are of one class: among these images "
            f"{100 * curve.same[0] / (curve.same[0] + curve.other[0]):.2f} %."
            + ("" if chosen is None else f" The run's threshold is {chosen:.3f}.")
        )
        if self.run.threshold_note:
            section.paragraph(self.run.threshold_note)
        section.markup(widgets.threshold_slider(curve, chosen))

    def _picture(self, row: int) -> Markup | None:
        if row not in self.pictures:
            images = self.table.images
            self.pictures[row] = None if images is None else thumbnails.thumbnail(images[row])
        return self.pictures[row]

    def _name(self, row: int) -> str:
        return row_name(self.table, row)


def row_name(table: Table, row: int) -> str:
    """Where the image of a row is."""
    if isinstance(table.images, Files):
        return table.images.name(row)
    return (
        f"row {row}"
        if table.images is None or isinstance(table.images[row], (bytes, np.ndarray))
        else describe(table.images[row])
    )
