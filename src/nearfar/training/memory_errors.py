"""Detect out-of-memory errors, and suggest options that take less memory."""

import errno
from collections.abc import Iterator
from pathlib import Path

from nearfar.training.config import TrainConfig
from nearfar.training.defaults import compares_samples, is_pretrained

# Messages of torch on a CPU, a GPU and a Mac, of its libraries and of C++, and of a killed loading process.
_SIGNS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "defaultcpuallocator",
    "alloc_failed",
    "bad_alloc",
    "killed by signal: killed",
)
_COMMANDS = {
    "compare": "A smaller --batch_size N or --size N, as for nearfar train",
    "evaluate": "--size N for smaller images, or --device cpu to use the main memory",
    "duplicates": "--split NAME for fewer images, or --device cpu to use the main memory",
    "embed": "--split NAME for fewer images, or --device cpu to use the main memory",
    "index": "--split NAME for fewer images, or --device cpu to use the main memory",
    "serve": "One run instead of two, or --device cpu to use the main memory",
}


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is exhausted.

    >>> out_of_memory(MemoryError()), out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    (True, True)
    >>> out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    False
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)


def advice_to(command: str, error: BaseException) -> str:
    """The message for a command other than training that has run out of memory."""
    return f"out of memory ({_first_line(error)}). {_COMMANDS.get(command, 'Closing other programs')} may help."


def advice(config: TrainConfig, folder: Path | None, error: BaseException) -> str:
    """The message for training that has run out of memory: options that take less, and how to resume.

    Args:
        config: the configuration, as far as it was resolved.
        folder: the run folder; None if the run has not begun.
    """
    lines = [f"out of memory ({_first_line(error)}). These options take less, the most effective first:"]
    lines += [f"  {option:<36}{effect}" for option, effect in lighter_options(config)]
    if folder is None:
        return "\n".join([*lines, "No run was started."])
    return "\n".join(
        [
            *lines,
            f"To start a new run with other options: nearfar train --config {folder / 'config.yaml'} --out NEW ...",
            f"To resume this run with more memory: nearfar train --resume {folder}",
            "(with --devices N, N GPUs share its batches and its class vectors).",
        ]
    )


def lighter_options(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Options that take less memory than this configuration, with their effects."""
    sampler, model, data = config.sampler, config.model, config.data
    if sampler.p is not None and sampler.p > 1:
        p = sampler.p // 2
        per_class = sampler.k * (sampler.s if sampler.kind == "hierarchical" else 1)
        yield f"--p {p} --batch_size {p * per_class}", f"half the classes in a batch ({sampler.p} now)"
    elif sampler.p is None and (sampler.batch_size is None or sampler.batch_size > 1):
        now = sampler.batch_size or (512 if model.freeze else 128)
        yield f"--batch_size {now // 2}", f"half the images in a batch ({now} now)"
    if not model.freeze:
        yield from _network_options(config)
    if not all(map(compares_samples, config.loss)):  # the others compare with class vectors
        if config.sample_rate > 0.1:
            yield "--sample_rate 0.1", "compare with a tenth of the classes in each step (Partial FC)"
        yield f"--devices {2 * config.devices}", f"share batches and class vectors between {2 * config.devices} GPUs"
    for loss in config.loss:
        if loss.memory is not None and loss.memory > 1:
            name = f"--loss.{loss.name}.memory" if len(config.loss) > 1 else "--loss.memory"
            yield f"{name} {loss.memory // 2}", f"remember half the samples of past batches ({loss.memory:,} now)"
    if data.workers:
        yield f"--workers {data.workers // 2}", f"fewer processes that load images ({data.workers} now)"


def _network_options(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Options that shrink the activations."""
    sampler, model, data = config.sampler, config.model, config.data
    images = config.chunk or sampler.batch_size or 128
    if config.devices * config.nodes == 1 and config.precision != "16-mixed" and images > 1:
        frozen = "" if model.freeze_batch_norm else " --freeze_batch_norm"
        yield f"--chunk {max(1, images // 4)}{frozen}", "the same batch, fewer images at a time (GradCache)"
    if isinstance(data.size, int):
        smaller = max(1, data.size * 3 // 4)
        resize = "" if data.resize is None else f" --resize {round(data.resize * smaller / data.size)}"
        yield f"--size {smaller}{resize}", f"smaller images ({data.size} pixels now)"
    elif data.size is not None:
        height, width = data.size
        yield f"--size {height * 3 // 4},{width * 3 // 4}", f"smaller images ({height} x {width} pixels now)"
    if config.precision == "32-true":
        yield "--precision bf16-mixed", "activations of half the size, if the device supports it"
    if model.backbone is None or is_pretrained(model.backbone, model.weights):
        yield "--freeze", "train only the head, on cached features: a fraction of the memory and time"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
