"""A progress bar for long computations."""

from types import TracebackType
from typing import Any

from nearfar.errors import MissingPackageError

DELAY = 2.0  # seconds before the bar appears


class Progress:
    """A tqdm bar on the error stream. Calling it with an amount advances it.

    Args:
        total: the total amount of work.
        name: the name of the bar.
        show: True shows the bar at once, False never. None shows it after two seconds, if the error stream is a
            terminal and tqdm is installed.
    """

    def __init__(self, total: int, name: str, show: bool | None):
        self._bar: Any = None
        if show is False:
            return
        try:
            from tqdm import tqdm
        except ImportError:
            if show:
                raise MissingPackageError("progress=True needs tqdm: pip install 'nearfar[evaluation]'") from None
            return
        delay, disable = (0.0, False) if show else (DELAY, None)
        self._bar = tqdm(total=total, desc=name, delay=delay, disable=disable, unit_scale=True, leave=False)

    def __call__(self, amount: int) -> None:
        if self._bar is not None:
            self._bar.update(amount)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
