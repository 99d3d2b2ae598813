"""A bar for work that takes long."""

from types import TracebackType
from typing import Any

from nearfar.errors import MissingPackageError

DELAY = 2.0  # seconds before it appears


class Progress:
    """A tqdm bar on the error stream. Calling it moves it on.

    Args:
        total: how much there is to do.
        what: its name.
        show: None shows it if the work takes longer than two seconds, the error stream is a terminal and tqdm is
            installed; True shows it at once and everywhere; False never.
    """

    def __init__(self, total: int, what: str, show: bool | None):
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
        self._bar = tqdm(total=total, desc=what, delay=delay, disable=disable, unit_scale=True, leave=False)

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
