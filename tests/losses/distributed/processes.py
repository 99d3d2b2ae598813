"""Several processes on loopback that run every check of a world together, and what came of each."""

import datetime
import multiprocessing
import os
import pickle
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.tensor  # so that the processes, which are forked from one that has imported this, need not

# Seconds, far more than are needed: on a busy machine much takes long that takes no time elsewhere.
PATIENCE = 600  # that a process waits for another, before it gives up
LIMIT = 3600  # that all checks of a world may take
PASSED = "passed"

Check = Callable[[], None]
Results = dict[str, list[str]]  # of every check, for every rank


def run(checks: Callable[[], dict[str, Check]], world: int, folder: Path) -> Results:
    """Make the checks in so many processes and run them all, in the same order."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "tests.losses.distributed.checks"])
    processes = [context.Process(target=_worker, args=(checks, rank, world, folder)) for rank in range(world)]
    for process in processes:
        process.start()
    wait([process.sentinel for process in processes], LIMIT)
    for process in processes:
        process.join(LIMIT)
        if process.is_alive():
            process.kill()
    told = [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(world)]
    return {name: [own.get(name, "not reached") for own in told] for name in told[0]}


def _worker(checks: Callable[[], dict[str, Check]], rank: int, world: int, folder: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    store = dist.FileStore(str(folder / "store"), world)
    patience = datetime.timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=patience)
    results: dict[str, str] = {}
    for name, check in checks().items():
        try:
            check()
            results[name] = PASSED
        except BaseException:  # what one does not send, the others wait for: nothing after it means anything
            results[name] = traceback.format_exc()
            break
    (folder / str(rank)).write_bytes(pickle.dumps(results))
    os._exit(0)  # whatever the others do
