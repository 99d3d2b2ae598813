"""`nearfar plan`."""

from collections.abc import Sequence

from nearfar.commands.grammar import Parser, whole_number
from nearfar.planning import Hardware, Job, Plan, plan
from nearfar.planning.job import Total

DESCRIPTION = """What a training step takes on each of many processes (GPUs): memory, bytes sent, and time. Memory and
traffic follow from what nearfar allocates and sends, and were checked against measurements on 1, 2 and 4 processes;
time is arithmetic on the hardware that you describe, and a forecast. The exit code is 1 if it does not fit."""


def parser() -> Parser:
    """Its words."""
    words = Parser("plan --classes C [options]", DESCRIPTION)
    job = words.add_argument_group("what is trained; numbers may be written as 100e6")
    job.add_argument("--classes", type=whole_number, required=True, metavar="C", help="of the training data")
    job.add_argument("--dim", type=whole_number, default=512, metavar="D", help="of the embedding (512)")
    job.add_argument("--batch", type=whole_number, metavar="B", help="samples of all processes together (256 of each)")
    job.add_argument("--world", type=whole_number, default=1, metavar="N", help="processes (1)")
    job.add_argument(
        "--kind",
        choices=("softmax", "proxy", "pair"),
        default="softmax",
        help="softmax: samples are compared with class vectors, as by ArcFace, Circle, SoftTriple; proxy: class "
        "vectors with samples, as by Proxy-Anchor; pair: samples with each other (softmax)",
    )
    words.flag("--replicated", help="every process has all class vectors, not its part", group=job)
    job.add_argument("--sample-rate", type=float, default=1.0, metavar="R", help="share of classes in a step (1)")
    job.add_argument("--vectors", type=whole_number, default=1, metavar="K", help="of a class, as of SoftTriple (1)")
    job.add_argument("--optimiser", choices=("adamw", "adam", "sgd", "rmsprop"), default="adamw", help="(adamw)")
    usual, machine = Job(1, 1, 1), Hardware()
    job.add_argument(
        "--parameters", type=float, default=usual.parameters, metavar="P", help="of the network (25.6e6: ResNet-50)"
    )
    job.add_argument(
        "--activations", type=float, default=usual.activations / 1e6, metavar="MB", help="it keeps for a sample (90)"
    )
    job.add_argument(
        "--gflops", type=float, default=usual.operations / 1e9, metavar="G", help="of a sample, forward (8.2)"
    )
    own = words.add_argument_group("what each process has; by default an A100 of 80 GB, at rates that are sustained")
    own.add_argument("--memory", type=float, default=machine.memory / 1e9, metavar="GB", help="(80)")
    own.add_argument(
        "--tflops", type=float, default=machine.operations / 1e12, metavar="T", help="of matrix products (60)"
    )
    own.add_argument(
        "--bandwidth", type=float, default=machine.bandwidth / 1e9, metavar="GB/S", help="of its memory (1300)"
    )
    own.add_argument("--link", type=float, default=machine.link / 1e9, metavar="GB/S", help="that it sends (20)")
    own.add_argument("--latency", type=float, default=machine.latency * 1e6, metavar="US", help="of a message (20)")
    return words


def run(words: Sequence[str]) -> int:
    """Print a plan; the exit code is 1 if it does not fit."""
    found = plan(*_read(words))
    print(text(found))
    return 0 if found.fits else 1


def _read(words: Sequence[str]) -> tuple[Job, Hardware]:
    o = parser().parse_args(words)
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


def text(found: Plan) -> str:
    """The plan as it is printed."""
    job, memory = found.job, found.memory
    what = {"softmax": "samples x class vectors", "proxy": "class vectors x samples", "pair": "samples x samples"}
    placed = "" if job.kind == "pair" else ", sharded" if job.sharded else ", replicated"
    lines = [
        f"{job.classes:,} classes, {job.dimension:,} dimensions, {what[job.kind]}{placed}; {job.world:,} processes, "
        f"a batch of {job.batch:,}, {job.samples:,} each",
        "",
        "memory of a process, GB",
        *_lines(memory.between, 1e9),
        _line("kept between steps", memory.kept / 1e9),
        "  besides, in the loss:",
        *_lines(Total((*memory.loss.items, *memory.network.items)), 1e9),
        "  or, in the optimiser's step:",
        *_lines(memory.step, 1e9),
        _line(f"most at a time, of {found.hardware.memory / 1e9:,.0f}", memory.peak / 1e9),
        "",
        "sent by a process in a step, MB",
        *_lines(found.traffic.bytes, 1e6),
        _line(f"in all, in {found.traffic.messages} messages", found.traffic.sent / 1e6),
        "",
        "time of a step by arithmetic, ms",
        *_lines(found.time, 1e-3),
        _line("in all, one after the other", found.time.sum * 1e3),
        "",
    ]
    if found.fits:
        return "\n".join([*lines, "It fits."])
    return "\n".join([*lines, "It does not fit. What would:", *(f"  - {line}" for line in found.advice)])


def _lines(total: Total, unit: float) -> list[str]:
    return [_line(item.name, item.amount / unit, "    ") for item in total.items]


def _line(name: str, amount: float, indent: str = "  ") -> str:
    return f"{indent}{name}".ljust(56) + f"{amount:>14,.3f}"
