"""Transforms of other libraries."""

import random

import numpy as np
import pytest
import torch

from nearfar.imaging import BrokenImageError, EvalTransform
from nearfar.imaging.callables import call_foreign, transformed
from tests.imaging.pictures import photograph


class Foreign:
    """Stands for a transform of another library."""

    def __init__(self, result: object):
        self.result, self.given = result, None

    def __call__(self, *args: object, **options: object) -> object:
        self.given = args, options
        return self.result


def test_other_libraries_are_given_what_they_take() -> None:
    picture = photograph(6, 4)
    torchvision_like = Foreign(torch.zeros(3, 2, 2))
    assert call_foreign(torchvision_like, picture).shape == (3, 2, 2)
    assert torchvision_like.given == ((picture,), {})

    albumentations_like = type("Compose", (Foreign,), {"__module__": "albumentations.core"})(
        {"image": np.full((2, 5, 3), 51, np.uint8)}
    )
    x = call_foreign(albumentations_like, picture)
    assert x.shape == (3, 2, 5) and torch.allclose(x, torch.tensor(0.2))
    assert np.array_equal(albumentations_like.given[1]["image"], np.asarray(picture))

    kornia_like = type("Flip", (Foreign,), {"__module__": "kornia.augmentation"})(torch.ones(1, 3, 4, 4))
    assert call_foreign(kornia_like, picture).shape == (3, 4, 4)
    given = kornia_like.given[0][0]
    assert given.shape == (1, 3, 4, 6) and given.dtype == torch.float32 and given.max() <= 1

    assert call_foreign(lambda image: image.convert("L"), picture).shape == (1, 4, 6)
    with pytest.raises(TypeError, match=r"returned Tensor of shape \(2,\): it must return a tensor"):
        call_foreign(lambda image: torch.zeros(2), picture)


def test_ours_are_given_the_source_and_others_the_decoded_image() -> None:
    data = np.full((6, 4), 255, np.uint8)
    seen = []
    assert transformed(EvalTransform(4, None), data).shape == (3, 4, 4)
    transformed(lambda image: seen.append((image.mode, image.size)) or image, data)
    assert seen == [("RGB", (4, 6))]
    with pytest.raises(BrokenImageError, match="not an image"):
        transformed(lambda image: image, b"no image")


def test_chance_of_others_is_decided_by_the_seed_and_the_generators_are_put_back() -> None:
    def chance(image: object) -> torch.Tensor:
        return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()])[:, None, None]

    data = np.zeros((2, 2), np.uint8)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    one, again, other = (transformed(chance, data, seed) for seed in ((1, 2), (1, 2), (1, 3)))
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert torch.equal(one, again) and (one != other).all()

    class Compose(Foreign):
        __module__ = "albumentations.core"

        def set_random_seed(self, seed: int) -> None:
            self.seeds = [*getattr(self, "seeds", []), seed]

    own = Compose({"image": np.zeros((2, 2, 3), np.uint8)})
    for seed in ((1, 2), (1, 2), (1, 3)):
        transformed(own, data, seed)
    assert own.seeds[0] == own.seeds[1] != own.seeds[2]
