"""Checks devices."""

import torch

from nearfar.errors import InputError


def usable(device: str | torch.device) -> torch.device:
    """Return the device if it can hold tensors; otherwise raise `InputError`."""
    try:
        checked = torch.device(device)
        torch.zeros(1, device=checked).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"there is no device {str(device)!r} here: choose one such as cpu or cuda ({why})") from error
    return checked
