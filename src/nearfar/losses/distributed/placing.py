"""Giving a loss to ranks: which of its tensors every rank has a part of, and which all have alike."""

from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nearfar.errors import InputError, InputTypeError
from nearfar.losses.distributed.distribution import Distribution
from nearfar.losses.distributed.ranks import Ranks
from nearfar.losses.distributed.sharing import Shard, local_part
from nearfar.losses.loss import Loss
from nearfar.losses.wrappers import CrossBatchMemory, MatryoshkaLoss, SelfSupervisedLoss, SumLoss

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

SHARDED_ABOVE = 2**24  # elements of class weights
BLOCK = 2**12  # classes whose weights are drawn together
TABLES = ("weight", "bias", "centers")  # by classes
WRAPPERS = (SumLoss, MatryoshkaLoss, CrossBatchMemory, SelfSupervisedLoss)

_Module = TypeVar("_Module", bound=nn.Module)


def distribute(
    loss: _Module,
    group: "dist.ProcessGroup | None" = None,
    *,
    sharded: bool | None = None,
    sample_rate: float = 1.0,
    seed: int = 0,
) -> _Module:
    """Have a loss see the batches of all ranks as one batch. The loss is changed where it is, and returned.

    Call it on every rank, once the process group is there and the loss is on its device; all ranks begin with the first
    one's values. Then every rank calls the loss with its own embeddings and labels (as many as it has), and
    `backward()` at the same time as the others:

        loss = distribute(ArcFaceLoss(num_classes, 512))
        loss(model(images), labels).backward()

    The value is the loss of the whole batch, the same on all ranks. With reduction "none" it is that of the rank's own
    rows (Proxy-Anchor: of the classes it has), and the mean over ranks of what they make of it is differentiated.

    Gradients: *averaged over ranks*, as DistributedDataParallel does with those of the network, they are what one
    process with the whole batch has. So are those of the loss's own parameters that all ranks have alike
    (temperatures, boundaries, class weights that are not sharded). A sharded parameter's gradient is that of its rows,
    complete: keep it out of any averaging.

    Sharded class weights are DTensors, `Shard(0)`: every rank has ceil(C/N) consecutive classes, the last ones fewer,
    or none. `weight` is (classes, dimension), and (classes, K, dimension) where a class has K vectors, which stay
    together; `CenterLoss` has a buffer `centers` of that kind. `torch.distributed.checkpoint` saves and loads them, and
    optimiser states like them, at any number of ranks; `full_state` makes a plain state of them.

    Args:
        loss: any loss of this package, or a sum or wrapper of them.
        group: of processes; None is all. Without torch.distributed, one process by itself.
        sharded: whether class weights are; None: those with more than 2^24 elements, and those that were made without
            values (the option `sharded=True` of a class-level loss), which are drawn here, the same whatever the number
            of ranks.
        sample_rate: below 1, every training step takes a class that no sample of the batch has with this probability
            (Partial FC). Proxy-Anchor weighs the classes drawn by 1 / sample_rate: its loss and gradient are right on
            average. The softmax family is not corrected, as in the paper, and so is smaller than with all classes.
            Afterwards `loss.sampled` are the classes here that took part, counted from the rank's first: other rows of
            `weight` have no gradient, and an optimiser may leave them alone. In evaluation all classes take part.
        seed: of what is drawn, classes and weights; which classes depends on it, the step (`loss.sampling_step`, saved
            with the loss) and the class alone.

    References: X. An et al., "Killing Two Birds with One Stone: Efficient and Robust Training of Face Recognition CNNs
    by Partial FC", CVPR 2022, arXiv:2203.15565.
    """
    if not 0 < sample_rate <= 1:
        raise InputError(
            f"sample_rate is the share of the other classes that take part, above 0 up to 1, not {sample_rate}"
        )
    _check(loss)
    ranks = Ranks(group)
    for module in loss.modules():
        if isinstance(module, CrossBatchMemory | SelfSupervisedLoss):
            module.ranks = ranks
    remembered = {part for m in loss.modules() if isinstance(m, CrossBatchMemory) for part in m.modules()}
    with torch.no_grad():
        for module in loss.modules():
            if isinstance(module, Loss):
                shared = module in remembered
                module.distribution = Distribution(ranks, sample_rate, seed, shared_references=shared)
                _place(module, ranks, sharded, seed)
                if sample_rate < 1 and module.distribution.by_classes(module):
                    step = torch.zeros((), dtype=torch.long, device=_device(module))
                    module.register_buffer("sampling_step", step)
        for tensor in (*loss.parameters(), *loss.buffers()):
            if not is_sharded(tensor):
                tensor.copy_(ranks.first_ranks(tensor))
    return loss


def is_sharded(tensor: Tensor) -> bool:
    """Whether every rank has a part of the tensor."""
    return local_part(tensor.detach()) is not None


def full_state(loss: nn.Module) -> dict[str, Tensor]:
    """The state_dict of the same loss in one process, whole, on the first rank; others have an empty one. Call it on
    every rank.
    """
    state: dict[str, Tensor] = {}
    ranks = _ranks(loss)
    for name, tensor in loss.state_dict().items():
        if name.rpartition(".")[2] == "sampling_step":
            continue
        whole = _whole(tensor, ranks) if is_sharded(tensor) else tensor
        if whole is not None and ranks.rank == 0:
            state[name] = whole
    return state


@torch.no_grad()
def load_full_state(loss: nn.Module, state: dict[str, Any]) -> None:
    """Load the state_dict of a loss in one process, on every rank, which takes its part of it."""
    plain, ranks = dict(state), _ranks(loss)
    for name, tensor in loss.state_dict().items():
        if is_sharded(tensor) and name in plain:
            own, given = local_part(tensor), plain[name]
            shard = Shard(ranks, len(tensor))
            if given.numel() != tensor.numel():
                raise InputError(f"{name} is {tuple(given.shape)} in the state, but the loss has {tuple(tensor.shape)}")
            assert own is not None
            own.copy_(given.reshape(tensor.shape)[shard.first : shard.stop])
            plain[name] = tensor
        elif name.rpartition(".")[2] == "sampling_step":
            plain.setdefault(name, tensor)
    loss.load_state_dict(plain)


def _check(loss: nn.Module) -> None:
    if isinstance(loss, Loss):
        if loss.dense:
            raise InputError("dense=True computes with whole matrices, which ranks do not have: leave it out")
        if loss.distribution is not None:
            raise InputError(f"{type(loss).__name__} is distributed already")
        return
    if not isinstance(loss, WRAPPERS):
        raise InputTypeError(
            f"distribute takes the losses of nearfar.losses, and sums and wrappers of them, not {type(loss)}"
        )
    for part in loss.losses.values() if isinstance(loss, SumLoss) else [loss.loss]:
        _check(part)


def _place(loss: Loss, ranks: Ranks, sharded: bool | None, seed: int) -> None:
    """Shard the tables by classes, or give those that have no values yet some."""
    tables: dict[str, Tensor] = {
        name: getattr(loss, name) for name in TABLES if loss.class_level and getattr(loss, name, None) is not None
    }
    largest = max((table.numel() for table in tables.values()), default=0)
    assert loss.distribution is not None
    at_once = loss.weight is not None and not loss.distribution.by_classes(loss)
    if sharded is None:
        sharded = loss.sharded or (largest > SHARDED_ABOVE and not at_once)
    if sharded and at_once:
        raise InputError(
            f"{type(loss).__name__} is a function of a row's similarities to all classes at once, which no rank has if "
            "they are sharded: distribute it with sharded=False"
        )
    for number, (name, table) in enumerate(tables.items()):
        shard = Shard(ranks, loss.num_classes)
        placed: Tensor | None = None
        if sharded and dist.is_available() and dist.is_initialized():
            placed = _sharded(loss, name, table, shard, seed + number)
        elif table.is_meta:
            placed = _drawn(loss, name, table, slice(0, loss.num_classes), seed + number).reshape(table.shape)
        if placed is None:
            continue
        if isinstance(table, nn.Parameter):
            setattr(loss, name, nn.Parameter(placed, requires_grad=table.requires_grad))
        else:
            setattr(loss, name, placed)


def _sharded(loss: Loss, name: str, table: Tensor, shard: Shard, seed: int) -> "DTensor":
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, distribute_tensor
    from torch.distributed.tensor import Shard as Along

    group = shard.ranks.group or dist.group.WORLD
    assert group is not None
    kind = _device(loss).type
    mesh = DeviceMesh.from_group(group, kind)
    k = loss.vectors_per_class if name == "weight" else 1
    shape = torch.Size((shard.classes, k, *table.shape[1:]) if k > 1 else table.shape)
    if not table.is_meta:
        return distribute_tensor(table.detach().reshape(shape), mesh, [Along(0)])
    own = _drawn(loss, name, table, slice(shard.first, shard.stop), seed).reshape(-1, *shape[1:])
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(own, mesh, [Along(0)], run_check=False, shape=shape, stride=stride)


def _drawn(loss: Loss, name: str, table: Tensor, classes: slice, seed: int) -> Tensor:
    """The initial values of some classes, drawn in blocks, so that they do not depend on who draws which."""
    k = loss.vectors_per_class if name == "weight" else 1
    own = table.new_zeros((classes.stop - classes.start) * k, *table.shape[1:], device=_device(loss))
    if name == "bias":
        return own
    for start in range(classes.start // BLOCK * BLOCK, classes.stop, BLOCK):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + start // BLOCK) % 2**63)
        block = torch.empty(BLOCK * k, table.shape[1], dtype=table.dtype)
        if name == "centers":  # as Xavier's initialisation has it
            bound = (6 / (loss.num_classes + table.shape[1])) ** 0.5
            block.uniform_(-bound, bound, generator=generator)
        else:
            block.normal_(0, loss.initial_scale, generator=generator)
        inside = slice(max(start, classes.start), min(start + BLOCK, classes.stop))
        own[(inside.start - classes.start) * k : (inside.stop - classes.start) * k] = block[
            (inside.start - start) * k : (inside.stop - start) * k
        ]
    return own


def _device(loss: nn.Module) -> torch.device:
    """Where the loss is; what has no values is nowhere."""
    places = (t.device for t in (*loss.parameters(), *loss.buffers()) if not t.is_meta)
    return next(places, torch.get_default_device())


def _ranks(loss: nn.Module) -> Ranks:
    for module in loss.modules():
        if isinstance(module, Loss) and module.distribution is not None:
            return module.distribution.ranks
    raise InputError("the loss is not distributed: its state_dict() is whole")


def _whole(tensor: Tensor, ranks: Ranks) -> Tensor | None:
    """A sharded tensor in the shape that it has in one process, on the first rank."""
    own = local_part(tensor)
    assert own is not None
    shard = Shard(ranks, len(tensor))
    padded = own.new_zeros(shard.largest, *own.shape[1:])
    padded[: len(own)] = own
    parts = [torch.empty_like(padded) for _ in range(ranks.size)] if ranks.rank == 0 else None
    dist.gather(padded, parts, 0 if ranks.group is None else dist.get_global_rank(ranks.group, 0), ranks.group)
    if parts is None:
        return None
    whole = torch.cat(parts)[: len(tensor)]
    return whole.flatten(0, 1) if whole.ndim == 3 else whole
