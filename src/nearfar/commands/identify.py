"""`nearfar identify`."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nearfar.commands.grammar import Parser

if TYPE_CHECKING:
    from nearfar.retrieval.identified import Identified, Score
    from nearfar.retrieval.identify import Identifier


def run(arguments: Sequence[str]) -> int:
    """Identify the enrolled classes of pictures, or that they belong to none."""
    options = parser().parse_args(arguments)
    from nearfar.models.extraction import progress_bar
    from nearfar.retrieval.encoder import Encoder
    from nearfar.retrieval.identified import asked_for, identify, scored, write_csv
    from nearfar.retrieval.identify import Identifier
    from nearfar.retrieval.search import index_of, open_for
    from nearfar.training.runs import Run

    pictures = asked_for(options.pictures)
    folder = Run(options.run)
    encoder = Encoder.of_run(folder, options.device)
    index = open_for(encoder, index_of(options.run, options.index))
    try:
        identifier = Identifier.of(index, folder, far=options.far, prior=options.prior)
        with progress_bar(sys.stderr.isatty(), len(pictures)) as advance:
            identified = identify(identifier, encoder, pictures, advance=advance)
    finally:
        index.close()
    score = scored(identified, identifier.enrolled.names)
    if options.csv:
        write_csv(identified, options.csv)
    if options.json:
        calibration = None if identifier.calibration is None else identifier.calibration.to_dict()
        answers = [picture.to_dict() for picture in identified]
        result = {"calibration": calibration, "not_calibrated": identifier.why_not or None, "answers": answers}
        print(json.dumps({**result, "folders": None if score is None else vars(score)}, indent=2))
    else:
        _print(identifier, identified, score)
    return 0 if any(picture.answer for picture in identified) else 1


def parser() -> Parser:
    """The parser of the command."""
    command = Parser(
        "identify RUN PICTURE ... [options]",
        "Identify the enrolled class of each picture, or that it belongs to none. Enrol classes by indexing their "
        "images, one folder per class: nearfar index RUN FOLDER.",
    )
    command.add_run()
    command.add_argument("pictures", nargs="+", metavar="PICTURE", help="pictures, or folders of them")
    command.add_argument("--index", metavar="WHERE", help="a folder, or milvus:ADDRESS (RUN/index)")
    command.add_argument(
        "--far",
        type=float,
        default=0.01,
        metavar="F",
        help="false accept rate: share of pictures of unknown classes that may be identified (0.01)",
    )
    command.add_argument(
        "--prior",
        type=float,
        default=0.5,
        metavar="P",
        help="prior probability that a picture belongs to an enrolled class (0.5)",
    )
    command.add_argument("--csv", metavar="FILE", help="also write a table of the answers")
    command.flag("--json", help="print everything as JSON")
    command.add_device()
    return command


def _print(identifier: "Identifier", identified: "Sequence[Identified]", score: "Score | None") -> None:
    from nearfar.retrieval.identify import in_words

    enrolled, calibration = identifier.enrolled, identifier.calibration
    images = int(enrolled.counts.sum())
    print(f"{identifier.index.where}: {len(enrolled.names):,} classes of {images:,} images")
    print(in_words(calibration) if calibration else f"not calibrated, because {identifier.why_not}")
    print()
    print(_table(identified, calibrated=calibration is not None))
    for picture in identified:
        if picture.answer is None:
            print(f"! {picture.asked.shown} cannot be read: {picture.problem}")
    if score is not None:
        print(_in_words(score, calibrated=calibration is not None))


def _table(identified: "Sequence[Identified]", *, calibrated: bool) -> str:
    head = ("picture", "who", "probability", "nearest", "", "runner-up", "")
    rows = [head] + [_cells(picture) for picture in identified if picture.answer is not None]
    columns = [column for column in range(len(head)) if calibrated or column not in (1, 2)]
    width = [max(len(row[column]) for row in rows) for column in range(len(head))]
    right = (2, 4, 6)  # columns of numbers
    lines = [
        "  ".join(row[c].rjust(width[c]) if c in right else row[c].ljust(width[c]) for c in columns).rstrip()
        for row in rows
    ]
    return "\n".join(lines) if len(rows) > 1 else "no picture could be read"


def _cells(picture: "Identified") -> tuple[str, ...]:
    from nearfar.report.markup import readable

    answer = picture.answer
    assert answer is not None
    nearest = readable(answer.nearest)
    who = {"enrolled": nearest, "unsure": f"perhaps {nearest}"}.get(answer.verdict, "none of them")
    probability = "" if answer.probability is None else f"{answer.probability:.1%}".replace("%", " %")
    second = ("", "")
    if answer.runner_up is not None:
        second = readable(answer.runner_up), f"{answer.runner_up_similarity:.3f}"
    return readable(picture.asked.shown), who, probability, nearest, f"{answer.similarity:.3f}", *second


def _in_words(score: "Score", *, calibrated: bool) -> str:
    def share(part: int, whole: int) -> str:
        return f"{part:,} ({part / whole:.0%})".replace("%", " %")

    verb = "named rightly" if calibrated else "nearest to their class"
    text = f"\nOf {score.known:,} pictures in folders of enrolled classes, {share(score.right, score.known)} are {verb}"
    if calibrated:
        text += f", {score.wrong:,} wrongly, and {score.missed:,} are not named"
    if score.strangers and calibrated:
        text += f"; of {score.strangers:,} in other folders, {share(score.taken, score.strangers)} are named, wrongly"
    if score.themselves:
        text += f".\n{score.themselves:,} are enrolled themselves, and were judged by the others of their class"
    return f"{text}."
