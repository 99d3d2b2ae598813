"""Where a network computes."""

import torch

from nearfar.errors import InputError


def usable(device: str | torch.device) -> torch.device:
    """The device, if tensors can be there and come back; torch says in many ways that they cannot."""
    try:
        found = torch.device(device)
        torch.zeros(1, device=found).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"there is no device {str(device)!r} here: choose one such as cpu or cuda ({why})") from error
    return found
