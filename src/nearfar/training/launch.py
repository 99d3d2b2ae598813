"""`launch`: training in several processes on this machine. On several machines, use torchrun or srun."""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError
from nearfar.foundation.run_folder import RunError
from nearfar.training.options import ConfigError
from nearfar.training.world import accelerator_of

GRACE = 300  # seconds in which processes that are asked to stop may finish a step and save


def launch(worker: Callable[..., Any], processes: int, *arguments: Any) -> Any:
    """Call `worker(*arguments)` in new processes, connected as torchrun connects them; return the first one's result.

    If a process fails, all are ended. The first error is raised again here if it is one for users; otherwise it is a
    bug, and a `RuntimeError` contains its traceback. If a signal ended the process, `RunError` names it.

    Worker and arguments are pickled. Each process imports the main module again, so a script needs the usual
    `if __name__ == "__main__":`.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"nearfar-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        start_method="spawn",
        shutdown_timeout=GRACE,
        signals_to_handle="SIGTERM,SIGINT",
    )
    errors = multiprocessing.get_context("spawn").SimpleQueue()
    with _one_machine(processes):
        try:
            return elastic_launch(config, _report_errors)(errors, worker, *arguments)[0]
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if failure.exitcode < 0 or errors.empty():
                raise RunError(f"process {rank} of {processes} ended: {reason_of(failure)}") from error
            rank, first = errors.get()  # later ones lost their connection to the first
            if isinstance(first, NearfarError):
                raise first from error
            raise RuntimeError(f"process {rank} of {processes} ended:\n{first}") from None
        except SignalException:  # the processes got it too, and have saved
            return None


def check_accelerator(name: str) -> None:
    """Reject an accelerator that Lightning does not know or this machine does not have."""
    from lightning.pytorch.accelerators import AcceleratorRegistry

    kinds = {kind: AcceleratorRegistry[kind]["accelerator"] for kind in sorted(AcceleratorRegistry)}
    if name not in ("auto", "gpu", *kinds):
        raise ConfigError(f"there is no accelerator {name}: choose auto, gpu, {', '.join(kinds)}")
    meant = [] if name == "auto" else ["cuda", "mps"] if name == "gpu" else [name]
    if meant and not any(kinds[kind].is_available() for kind in meant):
        raise ConfigError(f"accelerator={name}, but this machine has none: leave it out, or use cpu")


def check_devices(accelerator: str, devices: int) -> None:
    """Reject more processes than there are devices."""
    import torch

    if devices < 1:
        raise ConfigError(f"devices={devices} must be at least 1")
    kind = accelerator_of(accelerator)
    if kind == "cuda" and devices > torch.cuda.device_count():
        raise ConfigError(f"devices={devices}, but this machine has {torch.cuda.device_count()} GPUs")
    if kind not in ("cpu", "cuda") and devices > 1:
        raise ConfigError(f"several devices need accelerator cpu or gpu, not {accelerator}")


def reason_of(failure: Any) -> str:
    """Why a process ended: its error, or the signal."""
    message = failure.message
    if isinstance(message, dict):
        message = message.get("message", "")
    return str(message).strip() or failure.signal_name()


def _report_errors(errors: Any, worker: Callable[..., Any], *arguments: Any) -> Any:
    """Call the worker in a process, and send its error to the parent: torch keeps only the message, not the type."""
    try:
        return worker(*arguments)
    except Exception as error:
        errors.put((os.environ["RANK"], error if isinstance(error, NearfarError) else traceback.format_exc()))
        raise


@contextmanager
def _one_machine(processes: int) -> Iterator[None]:
    """Use the loopback interface, share the cores, silence torch's agent, and restore the signal handlers that it
    replaces.
    """
    caught = threading.current_thread() is threading.main_thread()
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)} if caught else {}
    names = ("GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "TORCHELASTIC_SIGNALS_TO_HANDLE")
    before = {name: os.environ.get(name) for name in names}
    if sys.platform == "linux" and Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    loggers = [logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.multiprocessing")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
