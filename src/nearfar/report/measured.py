"""The sections of a run's report that show its embeddings: similarities, queries, confusions, map, threshold."""

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
NEIGHBOURS = 8  # hits of each query
CONFUSED = 8  # pairs of classes
ANCHORS = 1_500  # rows compared with all others for histograms
SCATTERED = 800  # queries in the scatter plot of similarities
BINS = 400  # of the histograms
SQUARE, ACROSS = 48, 32  # pixels of an image of the map, and images per row of their sheet

MISTAKE: tuple[Mark, Mark] = ("query", "wrong")


class Measured:
    """Adds the sections that show the embeddings of a run."""

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
        sample = queries.drawn_queries(self.queries, len(self.gallery), self.seed)
        found = self._search(sample, self.gallery, cameras=self.table.camera, k=NEIGHBOURS)
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

    def _search(self, rows: queries.Rows, gallery: queries.Rows, **options: Any) -> queries.Found:
        return queries.search(self.x, self.labels, rows, gallery, binary=self.binary, **options)

    def _similarities(self, section: Section, found: queries.Found, diagnosis: Diagnosis) -> None:
        anchors = len(diagnosis.anchors)
        drawn = "each image" if anchors == len(self.rows) else f"each of {anchors:,} images drawn at random"
        similarity = (
            "Similarity of the codes, 1 − 2 · (Hamming distance) / bits," if self.binary else "Cosine similarity"
        )
        section.figure(
            style.svg(figures.similarities(diagnosis.histogram, self.run.threshold)),
            f"{similarity} of {drawn} to all others of its class, and to all images of other classes. The less the "
            "two overlap, the better a single threshold separates them.",
        )
        if len(found.queries):
            chosen = np.arange(len(found.queries))
            if len(chosen) > SCATTERED:
                chosen = np.sort(np.random.default_rng(self.seed).choice(chosen, SCATTERED, replace=False))
            line, between = boundary_of_run(self.run)
            note = "" if line is None else f" Dashed: the boundary of {line.loss}, {line.formula}"
            note += f", for the similarity of {between}." if line is not None and between else "." if note else ""
            section.figure(
                style.svg(figures.plane(found.negative[chosen], found.positive[chosen], line)),
                f"{len(chosen):,} queries by the similarities of the nearest image of another class (s_n) and of the "
                f"same class (s_p). Above the diagonal, the nearest image is right.{note}",
            )
        values = diagnosis.summary()
        meanings = {
            "alignment": "mean squared distance within classes; lower is more compact",
            "uniformity": "log of the mean of exp(−2 d²); lower is more evenly spread",
            "density": "mean distance within classes divided by that between class centres",
            "effective_rank": f"number of directions in use, out of {diagnosis.dimension}",
            "hub_share": "share of hubs among all ten nearest neighbours: images that occur twice as often as the mean",
            "orphan_share": "share of images that are not among the ten nearest of any other",
        }
        section.table(
            ["measure", "value", "meaning"],
            [[name.replace("_", " "), values[name], meaning] for name, meaning in meanings.items()],
        )

    def _examples(self, section: Section, found: queries.Found) -> None:
        section.paragraph(
            f"Examples among {len(found.queries):,} queries{self._drawn(found)}, sorted by the margin between the "
            "nearest match and the nearest image of another class: the largest (best), about the median (typical) and "
            f"the smallest (worst), at most {EXAMPLES} each, of different classes. The first image is the query. The "
            "others are its nearest images with their similarity: right ones have a solid border and ✓, wrong ones a "
            "dashed border and ✗."
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
                        caption = f"{similarity:.2f}" + ("" if right else f" {label}")
                        title = f"{'right' if right else 'wrong'}: {label}, {self._name(int(other))}"
                        cells.append(Picture(self._picture(int(other)), caption, "right" if right else "wrong", title))
                section.grid(cells)

    def _drawn(self, found: queries.Found) -> str:
        return " drawn at random" if len(found.queries) < len(self.queries) else ""

    def _confusions(self, section: Section, found: queries.Found) -> None:
        pairs = queries.confusions(found, self.labels, CONFUSED)
        if not pairs:
            section.paragraph(f"None: the nearest image of every query{self._drawn(found)} is of the same class.")
            return
        names = self.table.label_names
        section.paragraph(
            f"The {len(pairs)} pairs of classes that are confused most often, with the number of queries of one class "
            "whose nearest image is of the other, and the most confident mistake. Images that look the same may have "
            "wrong labels."
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
        found = self._search(chosen, self.rows, k=1)
        nearest_labels = np.full(len(chosen), -1, np.int64)
        nearest_labels[np.searchsorted(chosen, found.queries)] = self.labels[found.nearest[:, 0]]
        sheet = None
        if self.table.images is not None:
            sheet = thumbnails.sheet((self.table.images[int(row)] for row in chosen), SQUARE, ACROSS)
        amount = "All" if len(chosen) == len(self.rows) else "A random sample of"
        section.paragraph(
            f"{amount} {len(chosen):,} images of {len(np.unique(self.labels[chosen])):,} classes, mapped by {method}, "
            "which preserves neighbourhoods; distances between groups mean little. Point at an image, or touch it, to "
            "see it and its class. The nearest image of a dot is of the same class, that of a cross is not."
        )
        names = list(self.table.label_names)
        section.markup(widgets.embedding_map(places, self.labels[chosen], nearest_labels, names, sheet, ACROSS))

    def _threshold(self, section: Section, diagnosis: Diagnosis) -> None:
        curve = accepted(diagnosis.histogram)
        if curve is None:
            section.paragraph("No two images are of the same class, so there are no precision and recall.")
            return
        chosen = self.run.threshold
        section.paragraph(
            "The precision and recall of a threshold on the similarity of two images. Move the slider. The precision "
            "depends on the share of pairs of the same class among all compared pairs, which is "
            f"{100 * curve.same[0] / (curve.same[0] + curve.other[0]):.2f} % for these images."
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
    """The location of the image of a row."""
    if isinstance(table.images, Files):
        return table.images.name(row)
    return (
        f"row {row}"
        if table.images is None or isinstance(table.images[row], (bytes, np.ndarray))
        else describe(table.images[row])
    )
