"""What a run or a comparison looks like: figures, and one HTML page. They take data, never models.

files of a run, embeddings, table ──► run.py          write_run_report: report.html of a run
                                        │
      files.py, sections.py     what the files say;  measured.py: what the embeddings find
                                        │
      queries.py      which queries go well and badly, which classes are confused
      thresholds.py   what a threshold would accept
      layout.py       a flat map of an embedding: t-SNE, or UMAP where it is installed
      boundaries.py   where a loss draws the line between similarities
                                        │
      figures.py, style.py      matplotlib figures, as SVG that follows the page's light and dark
      widgets.py                the map with pictures under the pointer, the threshold with its slider
      thumbnails.py             small pictures
                                        ▼
                                    page.py             Page: sections of text, tables, figures and pictures
                                    markup.py           what is escaped, and what is not

>>> from nearfar.report import Page
>>> page = Page("Birds")
>>> page.section("Summary").paragraph("recall@1 > 60 %")
>>> "recall@1 &gt; 60 %" in page.html()
True
"""

from nearfar.report.markup import Markup
from nearfar.report.page import Page, Picture, Section

__all__ = ["Markup", "Page", "Picture", "Section"]
