"""Reports of runs and comparisons: figures and self-contained HTML pages, made from data, not from models.

files of a run, embeddings, table ──► run.py          write_run_report: report.html of a run
                                        │
      sections.py     sections from the files of a run;  measured.py: sections from the embeddings
                                        │
      queries.py      the best and worst queries, and confused classes
      thresholds.py   precision and recall by threshold
      layout.py       a two-dimensional map of an embedding: t-SNE, or UMAP if it is installed
      boundaries.py   the decision boundary of a loss in the plane of similarities
                                        │
      figures.py, style.py      matplotlib figures, as SVG that follows the page's light and dark theme
      widgets.py                the map with images under the pointer, the threshold slider
      thumbnails.py             small images
                                        ▼
                                    page.py             Page: sections of text, tables, figures and images
                                    markup.py           escaping of text

>>> from nearfar.report import Page
>>> page = Page("Birds")
>>> page.section("Summary").paragraph("recall@1 > 60 %")
>>> "recall@1 &gt; 60 %" in page.html()
True
"""

from nearfar.report.markup import Markup
from nearfar.report.page import Page, Picture, Section

__all__ = ["Markup", "Page", "Picture", "Section"]
