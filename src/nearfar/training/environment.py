"""Versions and machine; needs only torch."""

import contextlib
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import nearfar

PACKAGES = ("nearfar", "torch", "numpy", "lightning", "pillow", "safetensors", "transformers", "faiss-cpu", "timm")


def environment() -> dict[str, Any]:
    """The versions of packages, and the machine."""
    packages = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    return {
        "nearfar": nearfar.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "packages": packages,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
