"""Write README.md's table of losses from the registry: `make docs-tables`."""

import re
from pathlib import Path

from nearfar.losses import LossInfo, list_losses

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- losses:begin -->\n", "<!-- losses:end -->"


def losses_table() -> str:
    """Every registered loss: its name, what its rows are compared with, its formula and its paper."""
    rows = [_row(info) for info in list_losses()]
    return "\n".join(["| loss | level | formula | paper |", "|---|---|---|---|", *rows, ""])


def _row(info: LossInfo) -> str:
    paper = re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", info.paper)
    cells = (f"`{info.name}`", info.level, f"`{info.formula}`", paper)
    return " | ".join(["", *(cell.replace("|", r"\|") for cell in cells), ""]).strip()


def updated(text: str) -> str:
    """The page with the table between its markers written anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + losses_table() + END + after


if __name__ == "__main__":
    README.write_text(updated(README.read_text(encoding="utf-8")), encoding="utf-8")
