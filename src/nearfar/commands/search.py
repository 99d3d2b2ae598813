"""`nearfar search`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from nearfar.commands.grammar import Parser


def parser() -> Parser:
    """The parser of the command."""
    command = Parser("search RUN IMAGE ... [options]", "Find the indexed images most similar to pictures.")
    command.add_run()
    command.add_argument("images", nargs="+", metavar="IMAGE", help="pictures to search for")
    command.add_argument("--k", type=int, default=10, metavar="N", help="number of results for each picture (10)")
    command.add_argument(
        "--threshold", metavar="T", help='least similarity of results: a number, or "calibrated" (none)'
    )
    command.add_argument("--index", metavar="WHERE", help="a folder, or milvus:ADDRESS (RUN/index)")
    command.add_argument("--out", metavar="FILE", help="page of results to write (RUN/search.html)")
    command.flag("--open", help="open the page in the browser")
    command.flag("--json", help="print the results as JSON, and write no page")
    command.add_device()
    return command


def run(arguments: Sequence[str]) -> int:
    """Search an index; return 1 if some pictures cannot be read."""
    options = parser().parse_args(arguments)
    from nearfar.retrieval.encoder import Encoder
    from nearfar.retrieval.gallery import readable_files
    from nearfar.retrieval.search import index_of, open_for, search

    encoder = Encoder.of_run(options.run, options.device)
    index = open_for(encoder, index_of(options.run, options.index))
    try:
        pictures, broken = readable_files(options.images)
        results = search(index, encoder, pictures, k=options.k, threshold=options.threshold)
    finally:
        index.close()
    for name, reason in broken.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    code = 1 if broken else 0
    if options.json:
        print(json.dumps([result.to_dict() for result in results], indent=2))
        return code
    for result in results:
        label = f" ({result.label})" if result.label else ""
        print(f"{result.query}{label}: {len(result.hits)} found")
        for rank, hit in enumerate(result.hits, 1):
            print(f"  {rank:>3}  {hit.similarity:.4f}  {hit.label:<24}  {hit.id}")
    from nearfar.retrieval.calibration import described
    from nearfar.retrieval.grid import write_grid

    if index.about.threshold is not None:
        print(described(index.about.threshold))
    page = write_grid(results, options.out or Path(options.run) / "search.html", where=index.where)
    print(page)
    if options.open:
        import webbrowser

        webbrowser.open(page.absolute().as_uri())
    return code
