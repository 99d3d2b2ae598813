"""`nearfar plan`."""

from collections.abc import Sequence

from nearfar.commands.grammar import Parser, whole_number
from nearfar.planning import Hardware, Job, Plan, plan
from nearfar.planning.job import Total

DESCRIPTION = """Forecast the memory, traffic and time of a distributed training step, per process (GPU). Memory and
traffic follow from the tensors that nearfar allocates and sends, and were checked against measurements on 1, 2 and 4
processes; time is calculated from the described hardware. The exit code is 1 if the job does not fit."""


def parser() -> Parser:
    """The parser of the command."""
    command = Parser("plan --classes C [options]", DESCRIPTION)
    job = command.add_argument_group("the job; numbers may be written as 100e6")
    job.add_argument("--classes", type=whole_number, required=True, metavar="C", help="number of training classes")
    job.add_argument("--dim", type=whole_number, default=512, metavar="D", help="dimension of the embedding (512)")
    job.add_argument(
        "--batch", type=whole_number, metavar="B", help="global batch, over all processes (256 per process)"
    )
    job.add_argument("--world", type=whole_number, default=1, metavar="N", help="processes (1)")
    job.add_argument(
        "--kind",
        choices=("softmax", "proxy", "pair"),
        default="softmax",
        help="softmax: compares samples with class vectors, as ArcFace, Circle and SoftTriple do; proxy: class "
        "vectors with samples, as Proxy-Anchor does; pair: samples with each other (softmax)",
    )
    command.flag("--replicated", help="every process holds all class vectors, not a shard", group=job)
    job.add_argument("--sample-rate", type=float, default=1.0, metavar="R", help="share of the classes in a step (1)")
    job.add_argument(
        "--vectors", type=whole_number, default=1, metavar="K", help="vectors per class, as for SoftTriple (1)"
    )
    job.add_argument(
        "--optimiser", choices=("adamw", "adam", "sgd", "rmsprop"), default="adamw", help="optimiser (adamw)"
    )
    usual, machine = Job(1, 1, 1), Hardware()
    job.add_argument(
        "--parameters",
        type=float,
        default=usual.parameters,
        metavar="P",
        help="weights of the network (25.6e6: ResNet-50)",
    )
    job.add_argument(
        "--activations",
        type=float,
        default=usual.activations / 1e6,
        metavar="MB",
        help="activations of the network per sample (90)",
    )
    job.add_argument(
        "--gflops", type=float, default=usual.operations / 1e9, metavar="G", help="forward pass of a sample (8.2)"
    )
    hardware = command.add_argument_group("the hardware of each process; default: an A100 of 80 GB, at sustained rates")
    hardware.add_argument("--memory", type=float, default=machine.memory / 1e9, metavar="GB", help="memory (80)")
    hardware.add_argument(
        "--tflops", type=float, default=machine.operations / 1e12, metavar="T", help="rate of matrix products (60)"
    )
    hardware.add_argument(
        "--bandwidth",
        type=float,
        default=machine.bandwidth / 1e9,
        metavar="GB/S",
        help="bandwidth of the memory (1300)",
    )
    hardware.add_argument("--link", type=float, default=machine.link / 1e9, metavar="GB/S", help="rate of sending (20)")
    hardware.add_argument(
        "--latency", type=float, default=machine.latency * 1e6, metavar="US", help="latency of a message (20)"
    )
    return command


def run(arguments: Sequence[str]) -> int:
    """Print a plan; return 1 if the job does not fit."""
    forecast = plan(*_read(arguments))
    print(text(forecast))
    return 0 if forecast.fits else 1


def _read(arguments: Sequence[str]) -> tuple[Job, Hardware]:
    o = parser().parse_args(arguments)
    return (
        Job(
            classes=o.classes,
            dimension=o.dim,
            batch=256 * o.world if o.batch is None else o.batch,
            world=o.world,
            kind=o.kind,
            sharded=not o.replicated,
            sample_rate=o.sample_rate,
            vectors_per_class=o.vectors,
            optimiser=o.optimiser,
            parameters=o.parameters,
            activations=o.activations * 1e6,
            operations=o.gflops * 1e9,
        ),
        Hardware(o.memory * 1e9, o.tflops * 1e12, o.bandwidth * 1e9, o.link * 1e9, o.latency / 1e6),
    )


def text(forecast: Plan) -> str:
    """Format a plan."""
    job, memory = forecast.job, forecast.memory
    what = {"softmax": "samples x class vectors", "proxy": "class vectors x samples", "pair": "samples x samples"}
    placed = "" if job.kind == "pair" else ", sharded" if job.sharded else ", replicated"
    lines = [
        f"{job.classes:,} classes, {job.dimension:,} dimensions, {what[job.kind]}{placed}; {job.world:,} processes, "
        f"a batch of {job.batch:,}, {job.samples:,} each",
        "",
        "memory of a process, GB",
        *_lines(memory.between, 1e9),
        _line("kept between steps", memory.kept / 1e9),
        "  in addition, in the loss:",
        *_lines(Total((*memory.loss.items, *memory.network.items)), 1e9),
        "  or, in the optimiser's step:",
        *_lines(memory.step, 1e9),
        _line(f"peak, of {forecast.hardware.memory / 1e9:,.0f}", memory.peak / 1e9),
        "",
        "sent by a process in a step, MB",
        *_lines(forecast.traffic.bytes, 1e6),
        _line(f"total, in {forecast.traffic.messages} messages", forecast.traffic.sent / 1e6),
        "",
        "calculated time of a step, ms",
        *_lines(forecast.time, 1e-3),
        _line("total, without overlap", forecast.time.sum * 1e3),
        "",
    ]
    if forecast.fits:
        return "\n".join([*lines, "It fits."])
    return "\n".join(
        [*lines, "It does not fit. These changes would make it fit:", *(f"  - {line}" for line in forecast.advice)]
    )


def _lines(total: Total, unit: float) -> list[str]:
    return [_line(item.name, item.amount / unit, "    ") for item in total.items]


def _line(name: str, amount: float, indent: str = "  ") -> str:
    return f"{indent}{name}".ljust(56) + f"{amount:>14,.3f}"
