"""Distributing a loss over ranks: which of its tensors are divided among them, and which all of them have."""

from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nearfar.errors import InputError, InputTypeError
from nearfar.losses.cross_batch_memory import CrossBatchMemory
from nearfar.losses.distributed.distribution import Distribution
from nearfar.losses.distributed.ranks import Ranks
from nearfar.losses.distributed.sharing import Shard, local_part
from nearfar.losses.loss import Loss
from nearfar.losses.matryoshka import MatryoshkaLoss
from nearfar.losses.self_supervised import SelfSupervisedLoss
from nearfar.losses.sums import SumLoss

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

SHARDED_ABOVE = 2**24  # elements of class weights
BLOCK = 2**12  # classes whose weights are drawn together
TABLES = ("weight", "bias", "centers")  # one row, or number, for every class
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
    """Make a loss take the batches of all ranks for one batch. The loss is changed in place, and returned.

    Call it on every rank, once the process group is initialised and the loss is on its device; all ranks begin with the
    values of the first. Then every rank calls the loss with its own embeddings and labels, any number of them, and
    `backward()` at the same time as the others:

        loss = distribute(ArcFaceLoss(num_classes, 512))
        loss(model(images), labels).backward()

    The value is the loss of the whole batch, the same on all ranks. With reduction "none" it is that of the rank's own
    rows (Proxy-Anchor: of its classes), and what is differentiated is the mean over ranks of what they compute from it.

    Gradients: *averaged over ranks*, as DistributedDataParallel does with those of the network, they are those of one
    process with the whole batch. This holds for the loss's own parameters too, if all ranks have them (temperatures,
    boundaries, class weights that are not sharded). The gradient of a sharded parameter is complete: do not average it.

    Sharded class weights are DTensors, `Shard(0)`: every rank has ceil(C/N) consecutive classes, the last ones fewer,
    or none. `weight` is (classes, dimension), or (classes, K, dimension) where a class has K vectors, which stay
    together; `CenterLoss` has a sharded buffer `centers`. `torch.distributed.checkpoint` saves and loads them, and
    their optimiser states, on any number of ranks; `full_state` makes a plain state of them.

    Args:
        loss: any loss of this package, or a sum or wrapper of them.
        group: the group of processes; None is all. Without torch.distributed it is this process.
        sharded: whether class weights are sharded; None shards those with more than 2^24 elements, and those that were
            made without values (the option `sharded=True` of a class-level loss). The latter are drawn here, the same
            on any number of ranks.
        sample_rate: below 1, a class that no sample of the batch has takes part in a training step with this
            probability (Partial FC). Proxy-Anchor weights the drawn classes by 1 / sample_rate: its loss and gradient
            are right on average. The softmax family is not corrected, as in the paper, and so is smaller than with all
            classes. After a step, `loss.sampled` lists this rank's classes that took part, counted from its first;
            other rows of `weight` have no gradient, and an optimiser may skip them. In evaluation all take part.
        seed: of the draw of classes and of initial weights. A class is drawn by the seed, the step
            (`loss.sampling_step`, saved with the loss) and its number.

    References: X. An et al., "Killing Two Birds with One Stone: Efficient and Robust Training of Face Recognition CNNs
    by Partial FC", CVPR 2022, arXiv:2203.15565.
    """
    if not 0 < sample_rate <= 1:
        raise InputError(
            f"sample_rate is the share of the other classes that take part, above 0 and at most 1, not {sample_rate}"
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
                module.distribution = Distribution(ranks, sample_rate, seed, shared_references=module in remembered)
                _place(module, ranks, sharded, seed)
                if sample_rate < 1 and module.distribution.by_classes(module):
                    step = torch.zeros((), dtype=torch.long, device=_device(module))
                    module.register_buffer("sampling_step", step)
        for tensor in (*loss.parameters(), *loss.buffers()):
            if not is_sharded(tensor):
                tensor.copy_(ranks.first_ranks(tensor))
    return loss


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is divided among ranks."""
    return local_part(tensor.detach()) is not None


def full_state(loss: nn.Module) -> dict[str, Tensor]:
    """The state_dict of the same loss in one process, on the first rank, and an empty one on the others. Call it on
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
    """Load the state_dict of a loss in one process. Call it on every rank, which takes its part."""
    plain, ranks = dict(state), _ranks(loss)
    for name, tensor in loss.state_dict().items():
        if is_sharded(tensor) and name in plain:
            part, saved = local_part(tensor), plain[name]
            shard = Shard(ranks, len(tensor))
            if saved.numel() != tensor.numel():
                raise InputError(f"{name} is {tuple(saved.shape)} in the state, but the loss has {tuple(tensor.shape)}")
            assert part is not None
            part.copy_(saved.reshape(tensor.shape)[shard.first : shard.stop])
            plain[name] = tensor
        elif name.rpartition(".")[2] == "sampling_step":
            plain.setdefault(name, tensor)
    loss.load_state_dict(plain)


def _check(loss: nn.Module) -> None:
    if isinstance(loss, Loss):
        if loss.dense:
            raise InputError("dense=True computes with whole matrices, of which every rank has a part: leave it out")
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
    """Shard the tables by classes, and initialise those without values."""
    tables: dict[str, Tensor] = {
        name: getattr(loss, name) for name in TABLES if loss.class_level and getattr(loss, name, None) is not None
    }
    largest = max((table.numel() for table in tables.values()), default=0)
    assert loss.distribution is not None
    needs_all_classes = loss.weight is not None and not loss.distribution.by_classes(loss)
    if sharded is None:
        sharded = loss.sharded or (largest > SHARDED_ABOVE and not needs_all_classes)
    if sharded and needs_all_classes:
        raise InputError(
            f"{type(loss).__name__} needs a row's similarities to all classes at once, which no rank has if the class "
            "vectors are sharded: distribute it with sharded=False"
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
    mesh = DeviceMesh.from_group(group, _device(loss).type)
    k = loss.vectors_per_class if name == "weight" else 1
    shape = torch.Size((shard.classes, k, *table.shape[1:]) if k > 1 else table.shape)
    if not table.is_meta:
        return distribute_tensor(table.detach().reshape(shape), mesh, [Along(0)])
    part = _drawn(loss, name, table, slice(shard.first, shard.stop), seed).reshape(-1, *shape[1:])
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(part, mesh, [Along(0)], run_check=False, shape=shape, stride=stride)


def _drawn(loss: Loss, name: str, table: Tensor, classes: slice, seed: int) -> Tensor:
    """The initial values of a range of classes, drawn in blocks, so that they are the same on any number of ranks."""
    k = loss.vectors_per_class if name == "weight" else 1
    values = table.new_zeros((classes.stop - classes.start) * k, *table.shape[1:], device=_device(loss))
    if name == "bias":
        return values
    for start in range(classes.start // BLOCK * BLOCK, classes.stop, BLOCK):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + start // BLOCK) % 2**63)
        block = torch.empty(BLOCK * k, table.shape[1], dtype=table.dtype)
        if name == "centers":  # Xavier's initialisation
            bound = (6 / (loss.num_classes + table.shape[1])) ** 0.5
            block.uniform_(-bound, bound, generator=generator)
        else:
            block.normal_(0, loss.initial_scale, generator=generator)
        inside = slice(max(start, classes.start), min(start + BLOCK, classes.stop))
        values[(inside.start - classes.start) * k : (inside.stop - classes.start) * k] = block[
            (inside.start - start) * k : (inside.stop - start) * k
        ]
    return values


def _device(loss: nn.Module) -> torch.device:
    """The device of the loss's tensors, apart from those without values."""
    devices = (t.device for t in (*loss.parameters(), *loss.buffers()) if not t.is_meta)
    return next(devices, torch.get_default_device())


def _ranks(loss: nn.Module) -> Ranks:
    for module in loss.modules():
        if isinstance(module, Loss) and module.distribution is not None:
            return module.distribution.ranks
    raise InputError("the loss is not distributed: its state_dict() is whole")


def _whole(tensor: Tensor, ranks: Ranks) -> Tensor | None:
    """A sharded tensor in the shape that it has in one process, on the first rank; None on the others."""
    part = local_part(tensor)
    assert part is not None
    shard = Shard(ranks, len(tensor))
    padded = part.new_zeros(shard.largest, *part.shape[1:])
    padded[: len(part)] = part
    parts = [torch.empty_like(padded) for _ in range(ranks.size)] if ranks.rank == 0 else None
    dist.gather(padded, parts, 0 if ranks.group is None else dist.get_global_rank(ranks.group, 0), ranks.group)
    if parts is None:
        return None
    whole = torch.cat(parts)[: len(tensor)]
    return whole.flatten(0, 1) if whole.ndim == 3 else whole
