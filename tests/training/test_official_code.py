"""Ten steps of a recipe are ten steps of its authors' code, transcribed here with plain PyTorch: loss, groups of
parameters, what is trained when, batch normalisation, clipping, optimiser and rates.

Both start from the weights that the recipe draws, whose distribution is compared with the code's own, and see the same
batches, in float64. The trunk is a small one; pooling, head and all else are transcribed.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nearfar.data import Batch
from nearfar.training.config import TrainConfig
from nearfar.training.learner import Learner, Step
from nearfar.training.prepare import Prepared, prepare
from nearfar.training.recipes import recipe
from nearfar.training.start import start
from tests.training.making import patterns

STEPS = 10
CLASSES, EACH = 8, 6  # to train on, and their images
DIMENSION = 16


def small(config: TrainConfig) -> TrainConfig:
    """The recipe on small pictures, with an epoch of two batches, of P x K one."""
    size = (16, 8) if isinstance(config.data.size, tuple) else 16
    sampler = (
        replace(config.sampler, p=CLASSES, k=EACH)
        if config.sampler.kind == "pk"
        else replace(config.sampler, batch_size=CLASSES * EACH // 2)
    )
    plain = config.model.head == "none"
    return replace(
        config,
        data=replace(config.data, size=size, resize=None, workers=0, validation=0.0),
        sampler=sampler,
        model=replace(
            config.model,
            backbone="convnet",
            options={"width": 4},
            weights="random",
            dimension=None if plain else DIMENSION,
        ),
        accelerator="cpu",
    )


class Silent:
    """Watches the learner, and does nothing (`Observer`)."""

    def before_step(self, learner: Learner) -> None: ...

    def after_step(self, learner: Learner, step: Step) -> None: ...


def batches_of(prepared: Prepared) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Epoch, images and labels of every batch."""
    epoch = 0
    while True:
        for batch in prepared.loader:
            yield epoch, batch.images.double(), batch.labels
        epoch += 1


class Official:
    """What the codes have in common: a trunk, pooled features, a layer, and a loop over batches.

    Args:
        prepared: a recipe, whose trunk and initial weights are taken.
    """

    statistics_follow = True  # of batch normalisation

    def __init__(self, prepared: Prepared):
        embedder = prepared.embedder
        self.trunk = copy.deepcopy(embedder.trunk).requires_grad_(True)
        self.layer = nn.Linear(embedder.channels, DIMENSION).double()
        if embedder.heads:
            self.layer.load_state_dict(embedder.heads[0].linear.state_dict())
        self.classes = nn.Parameter(torch.empty(0))
        if getattr(prepared.loss, "weight", None) is not None:
            self.classes = nn.Parameter(prepared.loss.weight.detach().clone())
        self.steps_an_epoch = len(prepared.loader)
        self.begin(prepared.config)

    def begin(self, config: TrainConfig) -> None:
        """Make the optimiser."""
        raise NotImplementedError

    def norms(self) -> list[nn.BatchNorm2d]:
        return [module for module in self.trunk.modules() if isinstance(module, nn.BatchNorm2d)]

    def step(self, number: int, epoch: int, images: Tensor, labels: Tensor) -> Tensor:
        """One step of the loop, with its loss."""
        raise NotImplementedError


class ProxyAnchor(Official):
    """tjddus9597/Proxy-Anchor-CVPR2020, code/train.py, losses.py, net/bn_inception.py."""

    lr, lr_step, gamma, freeze = 1e-4, 10, 0.5, True
    statistics_follow = False

    def begin(self, config: TrainConfig) -> None:
        for norm in self.norms():
            norm.momentum = 0.9
            if self.freeze:
                norm.eval()
                norm.weight.requires_grad_(False)
                norm.bias.requires_grad_(False)
        groups = [
            {"params": list(self.trunk.parameters())},
            {"params": self.layer.parameters(), "lr": self.lr},
            {"params": [self.classes], "lr": self.lr * 100},
        ]
        self.optimiser = torch.optim.AdamW(groups, lr=self.lr, weight_decay=1e-4)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimiser, step_size=self.lr_step, gamma=self.gamma)

    def embed(self, images: Tensor) -> Tensor:
        x = self.trunk(images)
        x = functional.adaptive_avg_pool2d(x, 1) + functional.adaptive_max_pool2d(x, 1)
        x = self.layer(x.flatten(1))
        return x / (x.square().sum(1, keepdim=True) + 1e-12).sqrt()

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        cosine = x @ (self.classes / (self.classes.square().sum(1, keepdim=True) + 1e-12).sqrt()).T
        one_hot = functional.one_hot(labels, len(self.classes)).to(x)
        pull = (torch.exp(-32 * (cosine - 0.1)) * one_hot).sum(0)
        push = (torch.exp(32 * (cosine + 0.1)) * (1 - one_hot)).sum(0)
        present = (one_hot.sum(0) != 0).sum()
        return torch.log(1 + pull).sum() / present + torch.log(1 + push).sum() / len(self.classes)

    def step(self, number: int, epoch: int, images: Tensor, labels: Tensor) -> Tensor:
        if number % self.steps_an_epoch == 0:  # where the code's loop over epochs begins
            if epoch:
                self.scheduler.step()
            self.trunk.train()
            if self.freeze:
                for norm in self.norms():
                    norm.eval()
            if epoch == 0:
                self.trunk.requires_grad_(False)
            if epoch == 1:
                self.trunk.requires_grad_(True)  # scales and shifts too
        loss = self.loss(self.embed(images), labels)
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_([*self.trunk.parameters(), *self.layer.parameters()], 10)
        nn.utils.clip_grad_value_([self.classes], 10)
        self.optimiser.step()
        return loss


class ProxyAnchorOfManyClasses(ProxyAnchor):
    """With --lr 6e-4 --bn-freeze 0 --lr-decay-step 20 --lr-decay-gamma 0.25."""

    lr, lr_step, gamma, freeze = 6e-4, 20, 0.25, False
    statistics_follow = True


class ProxyNCA(Official):
    """euwern/proxynca_pp, train.py, loss.py, networks.py, config/cub.json."""

    lr, lr_of_proxies, warmup = 4e-3, 4e2, 5

    def begin(self, config: TrainConfig) -> None:
        groups = [
            {"params": self.trunk.parameters(), "weight_decay": 0},
            {"params": self.layer.parameters(), "weight_decay": 0},
            {"params": [self.classes], "weight_decay": 0, "lr": self.lr_of_proxies},
        ]
        still = [{**groups[0], "params": list(self.trunk.parameters()), "lr": 0}]
        rest = [{**group, "params": list(group["params"])} for group in groups[1:]]
        self.of_warmup = torch.optim.Adam([*still, *rest], lr=self.lr, eps=1.0)
        groups = [{"params": list(self.trunk.parameters())}, *({**g, "params": list(g["params"])} for g in rest)]
        self.optimiser = torch.optim.Adam(groups, lr=self.lr, eps=1.0)
        self.trunk.train()

    def step(self, number: int, epoch: int, images: Tensor, labels: Tensor) -> Tensor:
        optimiser = self.of_warmup if epoch < self.warmup else self.optimiser
        optimiser.zero_grad()
        features = functional.adaptive_max_pool2d(self.trunk(images), 1).flatten(1)
        x = self.layer(functional.layer_norm(features, features.shape[1:]))
        x, proxies = 3 * functional.normalize(x), 3 * functional.normalize(self.classes)
        distance = (x[:, None] - proxies[None]).square().sum(2)
        loss = -functional.log_softmax(-distance, 1)[torch.arange(len(x)), labels].mean()
        loss.backward()
        nn.utils.clip_grad_value_([*self.trunk.parameters(), *self.layer.parameters()], 10)
        optimiser.step()
        return loss


class SoftTriple(Official):
    """idstcv/SoftTriple, train.py, loss/SoftTriple.py, net/bninception.py, with --freeze_BN."""

    centres = 10
    statistics_follow = False

    def begin(self, config: TrainConfig) -> None:
        self.trunk.train()
        for norm in self.norms():
            norm.eval()
        network = [*self.trunk.parameters(), *self.layer.parameters()]
        groups = [{"params": network, "lr": 1e-4}, {"params": [self.classes], "lr": 1e-2}]
        self.optimiser = torch.optim.Adam(groups, eps=0.01, weight_decay=1e-4)

    def step(self, number: int, epoch: int, images: Tensor, labels: Tensor) -> Tensor:
        features = self.trunk(images)
        features = functional.avg_pool2d(features, features.shape[2]).flatten(1)
        x = functional.normalize(self.layer(features))
        centres = functional.normalize(self.classes.T, dim=0)  # (D, C K), the K of a class side by side
        similarity = (x @ centres).reshape(len(x), -1, self.centres)
        of_class = (functional.softmax(similarity / 0.1, 2) * similarity).sum(2)
        margin = torch.zeros_like(of_class)
        margin[torch.arange(len(x)), labels] = 0.01
        loss = functional.cross_entropy(20 * (of_class - margin), labels)
        among = centres.T @ centres
        number_of_centres = len(among)
        own = torch.arange(number_of_centres) // self.centres
        pairs = torch.triu(own[:, None] == own[None], diagonal=1)
        apart = torch.sqrt(2.0 + 1e-5 - 2 * among[pairs]).sum()
        loss = loss + 0.2 * apart / (number_of_centres * (self.centres - 1))
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss


class MultiSimilarity(Official):
    """MalongTech/research-ms-loss, ret_benchmark/engine/trainer.py, losses/, solver/, configs/example.yaml."""

    statistics_follow = False

    def begin(self, config: TrainConfig) -> None:
        self.trunk.train()
        for norm in self.norms():
            norm.eval()
        each = [{"params": [p], "lr_mul": 0.1} for p in self.trunk.parameters()]  # which Adam does not know
        each += [{"params": [p], "lr_mul": 1.0} for p in self.layer.parameters()]
        self.optimiser = torch.optim.Adam(each, lr=3e-5, weight_decay=5e-4)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimiser, [1200, 2400], 0.1)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        similarity = x @ x.T
        losses = []
        for i in range(len(x)):
            positive = similarity[i][labels == labels[i]]
            positive = positive[positive < 1 - 1e-5]
            negative = similarity[i][labels != labels[i]]
            near = negative[negative + 0.1 > positive.min()]
            far = positive[positive - 0.1 < negative.max()]
            if len(near) < 1 or len(far) < 1:
                continue
            pull = torch.log(1 + torch.exp(-2 * (far - 0.5)).sum()) / 2
            push = torch.log(1 + torch.exp(40 * (near - 0.5)).sum()) / 40
            losses.append(pull + push)
        return torch.stack(losses).sum() / len(x)

    def step(self, number: int, epoch: int, images: Tensor, labels: Tensor) -> Tensor:
        self.optimiser._opt_called = True  # the code's scheduler steps first
        self.scheduler.step()
        features = functional.adaptive_max_pool2d(self.trunk(images), 1).flatten(1)
        loss = self.loss(functional.normalize(self.layer(features)), labels)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss


class Face(Official):
    """deepinsight/insightface, recognition/arcface_torch/train.py, partial_fc_v2.py, losses.py: sgd of everything."""

    def begin(self, config: TrainConfig) -> None:
        self.trunk.train()
        parameters = [{"params": list(self.trunk.parameters())}, {"params": [self.classes]}]
        self.optimiser = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4)

    def logits(self, cosine: Tensor, labels: Tensor) -> Tensor:
        raise NotImplementedError

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        cosine = functional.linear(functional.normalize(features), functional.normalize(self.classes)).clamp(-1, 1)
        return functional.cross_entropy(self.logits(cosine, labels), labels)

    def step(self, number: int, epoch: int, images: Tensor, labels: Tensor) -> Tensor:
        loss = self.loss(self.trunk(images).mean((2, 3)), labels)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss


def with_target(logits: Tensor, labels: Tensor, target: Callable[[Tensor], Tensor]) -> Tensor:
    """Logits, those of the samples' own classes changed."""
    own = functional.one_hot(labels, logits.shape[1]).bool()
    return torch.where(own, target(logits), logits)


class ArcFace(Face):
    """losses.py: ArcFace, without the easy margin."""

    def logits(self, cosine: Tensor, labels: Tensor) -> Tensor:
        def target(cosine: Tensor) -> Tensor:
            moved = cosine * math.cos(0.5) - torch.sqrt(1 - cosine**2) * math.sin(0.5)
            return torch.where(cosine > math.cos(math.pi - 0.5), moved, cosine - math.sin(math.pi - 0.5) * 0.5)

        return 64 * with_target(cosine, labels, target)


class CosFace(Face):
    """losses.py: CosFace, with the margin of its paper."""

    def logits(self, cosine: Tensor, labels: Tensor) -> Tensor:
        return 64 * with_target(cosine, labels, lambda own: own - 0.35)


class SphereFace(Face):
    """wy1iu/sphereface, margin_inner_product_layer.cpp (QUADRUPLE, forward) and sphereface_model.prototxt. The gradient
    is that of the loss, where the layer's own is not, as the recipe says.
    """

    iteration = 0

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        self.iteration += 1
        lam = max(1000 * (1 + 0.12 * self.iteration) ** -1, 5)
        length = features.norm(dim=1, keepdim=True)
        cosine = functional.linear(features, functional.normalize(self.classes)) / length

        def target(cosine: Tensor) -> Tensor:
            sign_0 = cosine.sign()
            sign_3 = sign_0 * (2 * cosine**2 - 1).sign()
            sign_4 = 2 * sign_0 + sign_3 - 3
            return sign_3 * (8 * cosine**4 - 8 * cosine**2 + 1) + sign_4

        logits = length * (with_target(cosine, labels, target) + lam * cosine) / (1 + lam)
        return functional.cross_entropy(logits, labels)


class Centre(Face):
    """ydwen/caffe-face, center_loss_layer.cpp: softmax and 0.008 / 2 |x - c|²; the centres follow by the paper's rule,
    α = 0.5, as the recipe says.
    """

    def __init__(self, prepared: Prepared):
        softmax, centre = prepared.loss.losses.values()
        self.weight = nn.Parameter(softmax.weight.detach().clone())
        self.bias = nn.Parameter(softmax.bias.detach().clone())
        self.centres = centre.centers.clone()
        super().__init__(prepared)

    def begin(self, config: TrainConfig) -> None:
        parameters = [*self.trunk.parameters(), self.weight, self.bias]
        self.trunk.train()
        self.optimiser = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        loss = functional.cross_entropy(functional.linear(x, self.weight, self.bias), labels)
        loss = loss + 0.008 * (x - self.centres[labels]).square().sum() / (2 * len(x))
        with torch.no_grad():
            for label in labels.unique():
                own = x[labels == label]
                self.centres[label] -= 0.5 * (self.centres[label] - own).sum(0) / (1 + len(own))
        return loss


OFFICIAL: dict[str, type[Official]] = {
    "cub/proxy-anchor": ProxyAnchor,
    "sop/proxy-anchor": ProxyAnchorOfManyClasses,
    "cub/proxy-nca++": ProxyNCA,
    "cub/soft-triple": SoftTriple,
    "cub/multi-similarity": MultiSimilarity,
    "faces/arcface": ArcFace,
    "faces/cosface": CosFace,
    "faces/sphereface-circle-protocol": SphereFace,
    "faces/center-circle-protocol": Centre,
}


def close(ours: Tensor, theirs: Tensor, what: str) -> None:
    torch.testing.assert_close(
        ours.detach(), theirs.detach(), rtol=1e-5, atol=1e-5, msg=lambda message: f"{what}: {message}"
    )


def begun(name: str) -> Prepared:
    """A recipe on small pictures, as it starts."""
    prepared = prepare(small(recipe(name)), patterns(2 * CLASSES, EACH))
    start(prepared.embedder, prepared.loss, prepared.parts.train, prepared.config)
    return prepared


@pytest.mark.parametrize("name", OFFICIAL)
def test_ten_steps_of_the_authors_code(name: str) -> None:
    prepared = begun(name)
    embedder, loss = prepared.embedder.double(), prepared.loss.double()
    official = OFFICIAL[name](prepared)
    learner = Learner(embedder, loss, prepared.config, prepared.total_steps, Silent())
    learner.configure_optimizers()
    learner.train()
    before = {key: value.clone() for key, value in embedder.state_dict().items()}
    for number, (epoch, images, labels) in zip(range(STEPS), batches_of(prepared), strict=False):
        learner.start_epoch(epoch)
        ours = learner.training_step(Batch(images, labels, np.arange(len(labels))))
        learner.optimiser.zero_grad()
        ours.backward()
        learner.configure_gradient_clipping(learner.optimiser)
        learner.optimiser.step()
        learner.schedule.step()
        learner.on_train_batch_end()
        close(ours, official.step(number, epoch, images, labels), f"the loss of step {number}")
    assert epoch > max(prepared.config.model.warmup_epochs, 1)  # warm-up has ended
    after = embedder.state_dict()
    for key, value in official.trunk.state_dict().items():
        close(after[f"trunk.{key}"], value, key)
    for head in embedder.heads:
        close(head.linear.weight, official.layer.weight, "the head's weight")
        close(head.linear.bias, official.layer.bias, "the head's bias")
    if isinstance(official, Centre):
        softmax, centre = loss.losses.values()
        close(softmax.weight, official.weight, "class vectors")
        close(softmax.bias, official.bias, "biases")
        close(centre.centers, official.centres, "centres")
    elif official.classes.numel():
        close(loss.weight, official.classes, "class vectors")
    moved = {key for key, value in before.items() if not torch.equal(value, after[key])}
    assert {"trunk.stem.weight", "trunk.bn.weight", "trunk.bn.bias"} <= moved
    assert ("trunk.bn.running_mean" in moved) is official.statistics_follow


def normal(values: Tensor, std: float) -> None:
    """Of mean zero and this standard deviation, and further away than a uniform distribution would have them."""
    error = std / math.sqrt(values.numel())
    assert abs(values.mean()) < 4 * error
    assert abs(values.std() - std) < 4 * error
    assert values.abs().max() > 2 * std


def uniform(values: Tensor, bound: float) -> None:
    """All within the bound, and as far apart as they can be."""
    assert 0.9 * bound < values.abs().max() <= bound
    assert abs(values.mean()) < 4 * bound / math.sqrt(3 * values.numel())
    assert abs(values.std() - bound / math.sqrt(3)) < 4 * bound / math.sqrt(3 * values.numel())


def test_heads_and_class_vectors_start_as_in_the_codes() -> None:
    channels = begun("cub/proxy-anchor").embedder.channels
    for name in ("cub/proxy-anchor", "cub/multi-similarity"):  # kaiming_normal_(mode="fan_out"), constant_(0)
        head = begun(name).embedder.heads[0].linear
        normal(head.weight, math.sqrt(2 / DIMENSION))
        assert not head.bias.any()
    for name in ("cub/proxy-nca++", "cub/soft-triple"):  # nn.Linear
        head = begun(name).embedder.heads[0].linear
        uniform(head.weight, 1 / math.sqrt(channels))
        uniform(head.bias, 1 / math.sqrt(channels))
    normal(begun("cub/proxy-anchor").loss.weight, math.sqrt(2 / CLASSES))  # kaiming_normal_(mode="fan_out")
    for name in ("cub/proxy-nca++", "sop/proxy-nca++", "in-shop/proxy-nca++"):
        normal(begun(name).loss.weight, 1 / 8)  # randn / 8
    centres = begun("cub/soft-triple").loss.weight  # kaiming_uniform_(a=sqrt(5)) of (D, C K)
    uniform(centres, 1 / math.sqrt(len(centres)))
    for name in ("faces/arcface", "market/circle-fastreid-protocol"):
        normal(begun(name).loss.weight, 0.01)  # normal(0, 0.01)
