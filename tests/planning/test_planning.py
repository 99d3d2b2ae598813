"""The arithmetic of a plan, worked by hand; and the constants that it shares with the losses."""

from dataclasses import replace

import pytest

from nearfar.cli import main
from nearfar.losses.engine import plan as engine_plan
from nearfar.planning import Hardware, Job, memory_of, plan, time_of, traffic_of
from nearfar.planning import traffic as messages
from nearfar.planning.memory import BUDGET
from nearfar.planning.traffic import strip

# A network of nothing, so that what is left is the classes.
JOB = Job(classes=1_000, dimension=10, batch=64, world=4, parameters=0, activations=0, operations=0)


def amounts(total: object) -> dict[str, float]:
    return {item.name: item.amount for item in total.items}


def test_memory_by_hand() -> None:
    memory = memory_of(JOB)
    table = 250 * 10 * 4
    assert amounts(memory.between) == {
        "class vectors": table,
        "their gradient": table,
        "their adamw states": 2 * table,
    }
    assert amounts(memory.loss) == {
        "similarities, in tiles": 64 * 250 * 4,
        "embeddings of all processes, with gradients": 3 * 64 * 10 * 4,
        "labels and row statistics": 64 * (16 + 32),
        "the new gradient of the class vectors": table,
    }
    assert memory.kept == 4 * table
    assert memory.peak == 4 * table + max(64_000 + 7_680 + 3_072 + table, 2 * table)


def test_memory_of_other_jobs() -> None:
    table = 250 * 10 * 4
    assert memory_of(replace(JOB, sharded=False)).kept == 4 * 4 * table
    assert memory_of(replace(JOB, optimiser="sgd")).kept == 3 * table
    assert memory_of(replace(JOB, vectors_per_class=3)).kept == 3 * 4 * table
    assert memory_of(replace(JOB, kind="pair")).kept == 0
    assert memory_of(replace(JOB, classes=1_001)).kept == 4 * 251 * 10 * 4  # the most that a process has
    assert memory_of(replace(JOB, sample_rate=0.1)).kept == 4 * table + 250 * 4  # and a count for every row
    network = replace(JOB, kind="pair", parameters=1e6, activations=5e6)
    assert memory_of(network).kept == 5 * 4e6
    assert amounts(memory_of(network).network) == {"activations of 16 samples": 16 * 5e6}
    large = replace(JOB, classes=10**8, batch=65_536)
    assert amounts(memory_of(large).loss)["similarities, in tiles"] == BUDGET


def test_rows_in_a_step() -> None:
    assert JOB.rows_in_step == 250 and replace(JOB, sharded=False).rows_in_step == 250
    assert replace(JOB, sample_rate=0.1).rows_in_step == 16 + 25
    assert replace(JOB, sample_rate=0.99).rows_in_step == 250
    assert replace(JOB, kind="pair").rows_in_step == 0


def test_traffic_by_hand() -> None:
    traffic = traffic_of(JOB)
    assert amounts(traffic.bytes) == {
        "embeddings": 3 * 16 * 10 * 4,
        "labels": 3 * 16 * 8,
        "gradients of the embeddings": 3 * 16 * 10 * 4,
        "row statistics": 2 * 3 / 4 * 4 * 64 * 4,
    }
    assert "row statistics" not in amounts(traffic_of(replace(JOB, kind="proxy")).bytes)
    replicated = amounts(traffic_of(replace(JOB, sharded=False)).bytes)
    assert replicated["gradient of the class vectors"] == 2 * 3 / 4 * 1_000 * 10 * 4
    assert amounts(traffic_of(replace(JOB, parameters=8)).bytes)["gradient of the network"] == 2 * 3 / 4 * 32
    assert traffic_of(replace(JOB, world=1)).sent == 0


def test_sent_does_not_depend_on_the_classes_if_they_are_sharded() -> None:
    """What makes it scale: 100 million classes send what a thousand do."""
    many = replace(JOB, classes=10**8)
    assert traffic_of(many).sent == traffic_of(JOB).sent
    assert memory_of(replace(many, world=8, batch=64)).kept == pytest.approx(memory_of(many).kept / 2)


def test_messages() -> None:
    assert traffic_of(JOB).messages == 8  # one strip: counts, embeddings, labels, two maxima, two sums, gradients
    assert traffic_of(replace(JOB, kind="proxy")).messages == 6
    long = replace(JOB, batch=2_048, classes=32_000)  # tiles of 1024 columns: 1024 rows, which the budget keeps
    assert strip(long) == 1024 and traffic_of(long).messages == 4 + 4 * 2
    middling = replace(long, classes=320_000)
    assert strip(middling) == 325 and traffic_of(middling).messages == 4 + 4 * 7
    wide = replace(long, classes=4 * 10**6)
    assert strip(wide) == 1024 and traffic_of(wide).messages == 4 + 4 * 2  # computed again, not kept


def test_time_by_hand() -> None:
    hardware = Hardware(operations=1e6, bandwidth=1e5, link=1e3, latency=0.5)
    times = amounts(time_of(replace(JOB, parameters=100, operations=1_000), hardware))
    assert times["network, forward and backward"] == 3 * 16 * 1_000 / 1e6
    assert times["the loss's products"] == 6 * 64 * 250 * 10 / 1e6
    assert times["the optimiser"] == pytest.approx(7 * (10_000 + 400) / 1e5)
    traffic = traffic_of(replace(JOB, parameters=100))
    assert times["messages"] == pytest.approx(traffic.sent / 1e3 + traffic.messages * 2 * 0.5)
    wide = replace(JOB, classes=4 * 10**6)  # 104 million bytes keep 26 of 64 strips of a million
    kept = BUDGET / (64 * 10**6 * 4)
    products = amounts(time_of(wide, hardware))["the loss's products"]
    assert products == pytest.approx((6 + 2 * (1 - kept)) * 64 * 10**6 * 10 / 1e6)


def test_what_would_fit() -> None:
    hardware = Hardware(memory=1e9)
    fits = plan(replace(JOB, classes=10**6), hardware)
    assert fits.fits and not fits.advice
    job = replace(JOB, classes=2 * 10**7, world=1, sharded=False, batch=4_096)
    tight = plan(job, hardware)
    assert not tight.fits
    assert any("use 8 processes, with class vectors sharded" in line for line in tight.advice)
    assert not any("sgd" in line for line in tight.advice)  # 3 x 800 MB
    for line in tight.advice:
        assert float(line.rpartition(": ")[2].partition(" GB")[0].replace(",", "")) <= 1
    activations = plan(replace(JOB, activations=1e9, batch=64), hardware)
    assert any("reduce the batch to" in line for line in activations.advice) is False  # one sample is too many
    assert any(
        "reduce the batch to 32, 8 samples" in line for line in plan(replace(JOB, activations=1e8), hardware).advice
    )
    hopeless = plan(replace(JOB, classes=10**9, dimension=10**5, batch=4), Hardware(memory=1e6))
    assert hopeless.advice == (
        "no single change makes it fit: combine sgd, sample_rate and a smaller batch or dimension",
    )


def test_constants_are_those_of_the_losses() -> None:
    assert engine_plan.BUDGET == BUDGET
    for name in ("TILE", "SQUARE", "FEWEST_ROWS"):
        assert getattr(engine_plan.SIZES, name.lower()) == getattr(messages, name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": 0}, "classes=0 must be at least 1"),
        ({"sample_rate": 0}, "above 0 and up to 1"),
        ({"batch": 3}, "at least one sample for each of 4 processes"),
        ({"parameters": -1}, "must not be negative"),
    ],
)
def test_jobs_that_are_none(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(JOB, **changes)


def test_hardware_that_is_none() -> None:
    with pytest.raises(ValueError, match="link=0 must be positive"):
        Hardware(link=0)
    with pytest.raises(ValueError, match="latency"):
        Hardware(latency=-1)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--classes", "100e6", "--dim", "512", "--world", "256", "--batch", "65536"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "class vectors                                                0.800" in shown
    assert "100,000,000 classes" in shown and shown.rstrip().endswith("It fits.")
    assert main(["plan", "--classes", "100e6", "--world", "256"]) == 0  # these are the defaults
    assert capsys.readouterr().out == shown
    assert main([*words, "--replicated"]) == 1
    shown = capsys.readouterr().out
    assert "It does not fit" in shown and "shard the class vectors" in shown and "409.600" in shown
    assert main(["plan", "--classes", "10", "--dim", "8", "--batch", "1", "--world", "2"]) == 2
    assert "at least one sample" in capsys.readouterr().err
    assert main([*words[:2], "1.5"]) == 2
    assert "--classes must be a whole number, not '1.5'" in capsys.readouterr().err
