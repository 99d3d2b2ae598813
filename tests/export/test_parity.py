"""The comparison of two networks, and inputs to compare them on."""

import math

import numpy as np
import pytest
import torch

from nearfar.data import Encoded
from nearfar.export.accuracy import whole_classes
from nearfar.export.inputs import random_inputs, sample_inputs
from nearfar.export.network import ExportError
from nearfar.export.parity import Parity, check, cosines, parity
from nearfar.models import Embedder, EvalTransform
from tests.report.making import table, with_broken


def test_cosines_by_hand():
    a = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, math.nan]])
    b = torch.tensor([[4.0, 3.0], [-2.0, 0.0], [0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    np.testing.assert_allclose(cosines(a, b), [0.96, -1, 1, 0, math.nan])
    with pytest.raises(ExportError, match=r"returns shape \(4, 2\), but PyTorch returns \(5, 2\)"):
        cosines(a, b[:4])


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_batches_of_one_of_two_and_of_the_rest(count):
    seen = []

    def network(inputs: torch.Tensor) -> torch.Tensor:
        seen.append(len(inputs))
        return inputs

    rows = torch.eye(8)[:count]
    assert parity(lambda x: 2 * x, network, rows, "rows") == Parity(count, "rows", 1.0, 1.0)
    assert seen == {1: [1], 2: [1, 1], 3: [1, 2], 7: [1, 2, 4]}[count]


@pytest.mark.parametrize("least", [0.99989, math.nan, -1.0])
def test_what_is_not_the_same_is_refused(least):
    with pytest.raises(ExportError, match="the onnx file does not reproduce PyTorch's embeddings"):
        check(Parity(16, "birds", least, 0.99995), "the onnx file")
    check(Parity(16, "birds", 0.9999, 0.99995), "the onnx file")


def test_inputs_of_a_table():
    model = Embedder("convnet", dimension=8, trunk_options={"width": 4}, preprocess=EvalTransform(16, None, crop=False))
    made = table()
    found, of = sample_inputs(model, made)
    assert of == "made" and found.shape == (16, 3, 16, 16)
    assert made.images is not None
    torch.testing.assert_close(found[0], model.preprocess(made.images[0]))
    torch.testing.assert_close(found[-1], model.preprocess(made.images[len(made) - 1]))
    found, of = sample_inputs(model, with_broken(made, [0]))
    assert of == "made" and len(found) == 15
    broken = with_broken(made, list(range(len(made))))
    assert isinstance(broken.images, Encoded)
    found, of = sample_inputs(model, broken)
    assert of == "random inputs" and torch.equal(found, random_inputs(model)) and found.std() > 0.1


def test_whole_classes():
    made = table(classes=6, each=8)
    assert whole_classes(made, None) is made and whole_classes(made, 48) is made
    assert np.unique(whole_classes(made, 17).labels, return_counts=True)[1].tolist() == [8, 8]
    assert len(whole_classes(made, 16)) == 16
    assert len(whole_classes(made, 3)) == 8  # one class, at least


def test_features_for_a_model_of_images_and_the_reverse():
    model = Embedder("features", trunk_options={"dimension": 5}, dimension=4)
    assert random_inputs(model).shape == (16, 5)
    with pytest.raises(ExportError, match="lacks features of 5 dimensions"):
        sample_inputs(model, table())
