"""Memory and traffic of each process against their number: sharded class weights beside replicated ones.

A step is: each process's share of the embeddings through the loss, forward and backward; gradients of what all have
alike averaged, as DistributedDataParallel does; AdamW. The network is left out: what it takes does not depend on the
classes. Processes talk by gloo over loopback, on the same cores, so the time of a step is that of all of them together,
and no forecast for machines of their own.

`nearfar.planning` forecasts memory and traffic; its numbers are beside the measured ones.
"""

import contextlib
import csv
import ctypes
import gc
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import results
from benchmarks.measure import _status
from nearfar import losses
from nearfar.losses.distributed import count_traffic, distribute, is_sharded
from nearfar.planning import Job, memory_of, traffic_of

CSV = results.CSV.with_name("distributed.csv")
STANDARD = (1_000_000, 64, 64)  # classes, dimension, batch
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ArcFaceLoss": ("softmax", {}),
    "ProxyAnchorLoss": ("proxy", {}),
}
# Modes: sharded; replicated; sampled, which is sharded, at a rate of 0.1.
STEPS = 2


@dataclass(frozen=True)
class Row(results.Stamped):
    """What one process took; of several, the most that any took."""

    loss: str
    mode: str
    classes: int
    dimension: int
    batch: int
    world: int
    kept_mb: float  # between steps: weights, their optimiser's state, the last gradient
    planned_kept_mb: float
    peak_mb: float  # in a step
    planned_peak_mb: float
    sent_mb: float  # in a step
    planned_sent_mb: float
    step_ms: float


def job(loss: str, mode: str, classes: int, dimension: int, batch: int, world: int) -> Job:
    """What is measured, as `nearfar plan` describes it."""
    return Job(
        classes=classes,
        dimension=dimension,
        batch=batch,
        world=world,
        kind=KINDS[loss][0],  # type: ignore[arg-type]
        sharded=mode != "replicated",
        sample_rate=0.1 if mode == "sampled" else 1.0,
        parameters=0,
        activations=0,
    )


def measure(
    names: Sequence[str], modes: Sequence[str], worlds: Sequence[int], classes: int, dimension: int, batch: int
) -> Iterator[Row]:
    """One set of processes for every loss, mode and number of them."""
    for name in names:
        for mode in modes:
            for world in worlds:
                row = _measured(name, mode, classes, dimension, batch, world)
                print(
                    f"{name} {mode} {classes:,} classes, {world} processes: kept {row.kept_mb:,.0f} MB (planned "
                    f"{row.planned_kept_mb:,.0f}), peak {row.peak_mb:,.0f} (planned {row.planned_peak_mb:,.0f}), sent "
                    f"{row.sent_mb:,.3f} (planned {row.planned_sent_mb:,.3f}), {row.step_ms:,.0f} ms",
                    flush=True,
                )
                yield row


def read(path: Path) -> list[Row]:
    """The newest row of every loss, mode, size and number of processes."""
    kinds = {field.name: field.type for field in fields(Row)}
    rows: dict[tuple[object, ...], Row] = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            values = {n: int(v) if kinds[n] is int else float(v) if kinds[n] is float else v for n, v in line.items()}
            row = Row(**values)  # type: ignore[arg-type]
            rows[row.loss, row.mode, row.classes, row.dimension, row.batch, row.world] = row
    return list(rows.values())


def table(rows: Sequence[Row]) -> str:
    """Markdown: measured, and in brackets planned."""
    head = "| loss | class vectors | processes | kept, MB | most in a step, MB | sent in a step, MB | step, ms |"
    lines = (
        f"| `{row.loss}` | {row.mode} | {row.world} | {row.kept_mb:,.0f} ({row.planned_kept_mb:,.0f}) "
        f"| {row.peak_mb:,.0f} ({row.planned_peak_mb:,.0f}) | {row.sent_mb:,.3f} ({row.planned_sent_mb:,.3f}) "
        f"| {row.step_ms:,.0f} |"
        for row in rows
    )
    return "\n".join([head, "|---|---|---|---|---|---|---|", *lines])


def write_table(path: Path, document: Path) -> None:
    """Put the newest rows of the standard size where the document has its marks."""
    rows = [row for row in read(path) if (row.classes, row.dimension, row.batch) == STANDARD]
    begin, end = "<!-- distributed:begin -->", "<!-- distributed:end -->"
    before, _, rest = document.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    document.write_text(f"{before}{begin}\n{table(rows)}\n{end}{after}", encoding="utf-8")


def _measured(name: str, mode: str, classes: int, dimension: int, batch: int, world: int) -> Row:
    context = multiprocessing.get_context("spawn")
    told = []
    with tempfile.TemporaryDirectory() as folder:
        ends = [context.Pipe(duplex=False) for _ in range(world)]
        processes = [
            context.Process(target=_worker, args=(name, mode, classes, dimension, batch, rank, world, folder, end))
            for rank, (_, end) in enumerate(ends)
        ]
        for process in processes:
            process.start()
        for _, end in ends:
            end.close()
        try:
            told = [receiver.recv() for receiver, _ in ends]
        except EOFError:
            raise RuntimeError(f"a process of {name}, {mode}, {world} ended: see its message above") from None
        finally:
            for process in processes:
                process.join()
    kept, peak, sent, seconds = (max(values) for values in zip(*told, strict=True))
    planned = job(name, mode, classes, dimension, batch, world)
    memory = memory_of(planned)
    return Row(
        **results.stamp(),  # type: ignore[arg-type]
        loss=name,
        mode=mode,
        classes=classes,
        dimension=dimension,
        batch=batch,
        world=world,
        kept_mb=round(kept / 1e6, 1),
        planned_kept_mb=round(memory.kept / 1e6, 1),
        peak_mb=round(peak / 1e6, 1),
        planned_peak_mb=round(memory.peak / 1e6, 1),
        sent_mb=round(sent / 1e6, 4),
        planned_sent_mb=round(traffic_of(planned).sent / 1e6, 4),
        step_ms=round(seconds * 1e3, 1),
    )


def _worker(
    name: str, mode: str, classes: int, dimension: int, batch: int, rank: int, world: int, folder: str, told: Connection
) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    own = batch // world + (rank < batch % world)
    generator = torch.Generator().manual_seed(rank)
    embeddings = torch.randn(own, dimension, generator=generator, requires_grad=True)
    labels = torch.randint(classes, (own,), generator=generator)
    small = torch.ones(8, dimension, requires_grad=True)
    torch.optim.AdamW([small]).step()  # what is imported at the first step
    gc.collect()
    before = _status("VmRSS")
    loss = getattr(losses, name)(num_classes=classes, embedding_size=dimension, sharded=True, **KINDS[name][1])
    distribute(loss, sharded=mode != "replicated", sample_rate=0.1 if mode == "sampled" else 1.0)
    optimiser = torch.optim.AdamW(loss.parameters(), lr=1e-3)
    lazy = None
    if mode == "sampled":
        from nearfar.training.parts import lazy_rows

        lazy = lazy_rows(loss, optimiser)

    def step() -> None:
        embeddings.grad = None
        optimiser.zero_grad()
        loss(embeddings, labels).backward()
        for parameter in loss.parameters():
            if not is_sharded(parameter) and world > 1:
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
        if lazy is not None:
            lazy.step()
        optimiser.step()

    step()
    with count_traffic() as traffic:
        step()
    times = []
    for _ in range(STEPS):
        dist.barrier()
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    _release()
    kept = _status("VmRSS") - before
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")
    step()
    peak = _status("VmHWM") - before
    told.send((kept, peak, traffic.sent, statistics.median(times)))
    dist.barrier()


def _release() -> None:
    """Give back what is freed, now, and from now on at once: so that what is resident is what is held."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(-3, 2**16)  # M_MMAP_THRESHOLD
        ctypes.CDLL(None).malloc_trim(0)
