"""`nearfar duplicates`."""

import json
import sys
from collections.abc import Sequence

from nearfar.commands.grammar import Parser


def parser() -> Parser:
    """The parser of the command."""
    command = Parser(
        "duplicates [DATA] [options]",
        "Find groups of near-identical images, above all between training and test images.",
    )
    command.add_argument("data", nargs="?", metavar="DATA", help="a data set (the built-in glyphs)")
    command.add_argument("--threshold", type=float, metavar="T", help="least cosine of near-identical images (0.9)")
    command.add_argument(
        "--backbone",
        default="efficientnet-lite0",
        metavar="NAME",
        help="pretrained network to compare with (efficientnet-lite0)",
    )
    command.add_argument("--run", metavar="RUN", help="compare with the model of a run instead; needs --threshold")
    command.add_argument("--split", metavar="NAME", help="only these rows: train, val, test, query or gallery")
    command.add_argument("--out", default="duplicates.html", metavar="FILE", help="page to write (duplicates.html)")
    command.add_argument("--csv", metavar="FILE", help="also write a table of the images in groups")
    command.flag("--json", help="print everything as JSON, and write no page")
    command.add_argument(
        "--max-broken", type=float, default=0.25, metavar="SHARE", help="largest share of unreadable images (0.25)"
    )
    command.add_device()
    return command


def run(arguments: Sequence[str]) -> int:
    """Find near-identical images."""
    options = parser().parse_args(arguments)
    from nearfar.data.opening import EMBEDDED, path_of
    from nearfar.models import Embedder
    from nearfar.models.devices import usable
    from nearfar.models.extraction import progress_bar
    from nearfar.retrieval.duplicates import THRESHOLD, find_duplicates
    from nearfar.retrieval.duplicates_page import write_page
    from nearfar.retrieval.encoder import Encoder
    from nearfar.retrieval.gallery import readable_gallery
    from nearfar.retrieval.index import RetrievalError
    from nearfar.training.progress import Display

    allowed, display = options.max_broken, Display()
    data = EMBEDDED if options.data is None else path_of(options.data)
    gallery = readable_gallery([data], split=options.split, max_broken=allowed, display=display)
    if options.run is None:
        encoder = Encoder(Embedder(options.backbone, head=None).to(usable(options.device)), max_broken=1.0)
    elif options.threshold is None:
        raise RetrievalError(
            "a trained model places all images of a class close together: set the similarity of near-identical images, "
            "such as --threshold 0.98"
        )
    else:
        encoder = Encoder.of_run(options.run, options.device)
    threshold = THRESHOLD if options.threshold is None else options.threshold
    with progress_bar(sys.stderr.isatty(), len(gallery)) as advance:
        duplicates = find_duplicates(encoder, gallery, threshold, advance=advance)
    if options.csv:
        duplicates.write_csv(options.csv)
    if options.json:
        print(json.dumps({**duplicates.to_dict(), "left_out": dict(gallery.left_out)}, indent=2))
        return 0
    print(duplicates.summary())
    for group in duplicates.leaks[:10]:
        print("  leak: " + " = ".join(f"{member.image} ({member.split})" for member in group.members[:4]))
    print(write_page(duplicates, gallery, options.out))
    return 0
