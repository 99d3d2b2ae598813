"""`nearfar export`: from a run to a folder for others."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import yaml

import nearfar.export.exporting as exporting
import nearfar.export.safetensors as weights
from nearfar.cli import main
from nearfar.export import ExportError, export
from nearfar.models import Embedder
from nearfar.training.runs import Run
from tests.export.making import make_run, photos

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_search.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photos(tmp_path_factory.mktemp("data") / "my|pictures")


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs") / "run", data)


@pytest.fixture(scope="module")
def exported(run: Run) -> exporting.Exported:
    return export(run, quantise="int8", licence="cc-by-4.0")


def bytes_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def test_what_is_in_the_folder(exported, run, data):
    assert exported.folder == run.folder / "export-onnx"
    names = {path.name for path in exported.folder.iterdir()}
    assert names == {".gitattributes", "README.md", "model-int8.onnx", "model.onnx", "preprocessing.json"}
    assert exported.files == {
        name: (exported.folder / name).stat().st_size for name in names - {".gitattributes", "README.md"}
    }
    assert exported.files["model-int8.onnx"] < 0.6 * exported.files["model.onnx"]
    assert exported.parity.least >= 0.9999 and (exported.parity.rows, exported.parity.source) == (16, "my|pictures")
    assert "*.onnx filter=lfs" in (exported.folder / ".gitattributes").read_text()
    # Neither the names of the training classes nor where things lie on this machine.
    content = bytes_in(exported.folder)
    assert b"secret" not in content and str(data.parent).encode() not in content


def test_the_description_is_in_the_files_too(exported, run):
    described = json.loads((exported.folder / "preprocessing.json").read_text())
    model = run.model()
    assert described["preprocess"] == json.loads(json.dumps(model.preprocess.to_dict()))
    assert described["input"] == {"name": "images", "dtype": "float32", "shape": ["batch", 3, 16, 16]}
    assert described["output"]["dimension"] == 8
    assert described["calibration"]["threshold"]["threshold"] == 0.625
    for name in ("model.onnx", "model-int8.onnx"):
        session = onnxruntime.InferenceSession(exported.folder / name)
        stored = session.get_modelmeta().custom_metadata_map
        assert json.loads(stored["nearfar"]) == described
        assert stored.get("quantised") == ("int8" if "int8" in name else None)


def recall_at_1(vectors: np.ndarray, labels: list[str]) -> float:
    right = 0
    for i in range(len(vectors)):
        best, found = -np.inf, ""
        for j in range(len(vectors)):
            if i != j and vectors[i] @ vectors[j] > best:
                best, found = vectors[i] @ vectors[j], labels[j]
        right += found == labels[i]
    return right / len(vectors)


def test_what_int8_costs_is_measured_on_the_test_classes(exported, run, data):
    test = sorted(path for path in data.glob("*/*.png") if path.parent.name[-1] in "4567")  # the later half of 8
    images = torch.stack([run.model().preprocess(path) for path in test]).numpy()
    labels = [path.parent.name for path in test]
    assert exported.accuracy.rows == len(test) == 24
    cosines = []
    for name, metrics in (("model.onnx", exported.accuracy.before), ("model-int8.onnx", exported.accuracy.after)):
        session = onnxruntime.InferenceSession(exported.folder / name)
        # In batches of eight, as they are embedded: the range of a batch decides how its activations are quantised.
        vectors = np.concatenate([session.run(None, {"images": part})[0] for part in np.split(images, 3)])
        cosines.append(vectors)
        assert metrics["recall@1"] == pytest.approx(recall_at_1(vectors, labels))
    similar = (cosines[0] * cosines[1]).sum(1) / np.linalg.norm(cosines[0], axis=1) / np.linalg.norm(cosines[1], axis=1)
    assert exported.accuracy.least == pytest.approx(similar.min(), abs=1e-6)
    assert exported.accuracy.mean == pytest.approx(similar.mean(), abs=1e-6)
    assert 0.9 < similar.min() < 0.999999


def test_the_card_is_one_of_the_hub(exported):
    text = (exported.folder / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["license"] == "cc-by-4.0" and "license_name" not in front
    assert front["pipeline_tag"] == "image-feature-extraction"
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard(text)
    results = {result.metric_name: result for result in card.data.eval_results}
    assert results["recall@1"].metric_value == 0.75 and results["map@r"].metric_value == 0.5
    assert results["map@r"].dataset_name == "my|pictures" and card.data.model_name == "run"
    assert "| recall@1 | 25.00% | 75.00% |" in text
    after = exported.accuracy.after["recall@1"]
    assert f"| recall@1 | {exported.accuracy.before['recall@1']:.2%} | {after:.2%} |" in text
    assert "`my\\|pictures`" in text  # a name cannot break the table
    assert "from a similarity of 0.625 on" in text and "ProxyAnchorLoss" in text


def test_the_code_in_the_card_works(exported, run, data, monkeypatch, capsys):
    text = (exported.folder / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    first, second = sorted(data.glob("*/*.png"))[:2]
    monkeypatch.chdir(exported.folder)
    exec(code.replace("model-int8", "model").replace("a.jpg", str(first)).replace("b.jpg", str(second)), {})
    a, b = run.model().embed([first, second])
    assert float(capsys.readouterr().out) == pytest.approx(float(a @ b), abs=5e-3)


def test_the_example_finds_what_nearfar_finds(exported, run, data):
    pictures = sorted(data.glob("*/*.png"))[:12]
    command = [sys.executable, str(EXAMPLE), str(exported.folder / "model.onnx"), *map(str, pictures)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    vectors = run.model().embed(pictures).numpy()
    similarities = vectors[1:] @ vectors[0]
    found = [line.split("  ") for line in shown.splitlines()]
    assert len(found) == 10
    for (number, path), expected in zip(found, np.sort(similarities)[::-1], strict=False):
        assert float(number) == pytest.approx(expected, abs=5e-3)
        assert float(number) == pytest.approx(similarities[list(map(str, pictures[1:])).index(path)], abs=5e-3)


def test_the_command(run, data, tmp_path, capsys):
    words = ["export", str(run.folder), "--format", "torchscript", "--out", str(tmp_path / "ts")]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "on 16 rows of my|pictures: cosine 1.000000 at least" in shown and "model.pt" in shown
    assert "no licence stated" in shown and f"hf upload NAME {tmp_path / 'ts'}" in shown
    assert yaml.safe_load((tmp_path / "ts" / "README.md").read_text().split("---\n")[1])["license"] == "unknown"
    assert main(words) == 2
    assert "already has an export: replace it with --replace" in capsys.readouterr().err
    assert main([*words, "--replace", "--licence", "My Own 1.0"]) == 0
    front = yaml.safe_load((tmp_path / "ts" / "README.md").read_text().split("---\n")[1])
    assert front["license"] == "other" and front["license_name"] == "My Own 1.0"
    assert [path.name for path in tmp_path.iterdir()] == ["ts"]


def test_safetensors(run, data, tmp_path):
    export(run, "safetensors", out=tmp_path / "st")
    model = Embedder.load(tmp_path / "st")
    assert model.label_names == () and model.calibration == run.model().calibration
    pictures = sorted(data.glob("*/*.png"))[:3]
    torch.testing.assert_close(model.embed(pictures), run.model().embed(pictures))
    assert b"secret" not in bytes_in(tmp_path / "st")
    text = (tmp_path / "st" / "README.md").read_text()
    assert 'Embedder.load("model.safetensors")' in text


def test_data_that_is_gone(tmp_path):
    gone = photos(tmp_path / "data", classes=8, each=2)
    run = make_run(tmp_path / "run", gone)
    gone.rename(tmp_path / "elsewhere")
    assert export(run, "safetensors").parity.source == "random inputs"
    with pytest.raises(ExportError, match=r"test rows, but these cannot be read: .*Give data with --data"):
        export(run, quantise="int8")
    assert not (tmp_path / "run" / "export-onnx").exists()
    with pytest.raises(OSError, match="no/such"):
        export(run, "safetensors", data="no/such", replace=True)


def test_a_file_that_is_not_the_model_leaves_nothing(run, tmp_path, monkeypatch):
    def wrong(model: Embedder, path: Path) -> None:
        other = copy.deepcopy(model)
        torch.nn.init.normal_(other.heads[0].linear.weight)
        other.save(path)

    monkeypatch.setattr(weights, "write_safetensors", wrong)
    with pytest.raises(ExportError, match=r"does not reproduce PyTorch.s embeddings.*Nothing was written"):
        export(run, "safetensors", out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_export_that_was_there(run, tmp_path, monkeypatch):
    export(run, "safetensors", out=tmp_path / "out")
    before = bytes_in(tmp_path / "out")

    def fails(*_: object) -> str:
        raise OSError("the disk is full")

    monkeypatch.setattr(exporting, "card", fails)
    with pytest.raises(OSError, match="the disk is full"):
        export(run, "safetensors", out=tmp_path / "out", replace=True)
    assert bytes_in(tmp_path / "out") == before and [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no/run"], "no/run"),
        (["RUN", "--format", "torchscript", "--quantise", "int8"], "quantise needs the format onnx"),
        (["RUN", "--rows", "10"], "at least 1, and needs quantise"),
        (["RUN", "--out", "FILE"], "is a file: --out must name a folder"),
        (["RUN", "--out", "OTHER"], "has files that are not an export"),
        (["RUN", "--out", "OTHER", "--replace"], "has files that are not an export"),
    ],
)
def test_mistakes(words, message, run, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("mine")
    places = {"RUN": run.folder, "FILE": tmp_path / "file", "OTHER": tmp_path / "other"}
    assert main(["export", *(str(places.get(word, word)) for word in words)]) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == (tmp_path / "other" / "mine").read_text() == "mine"


def test_an_unfinished_run(data, tmp_path):
    run = make_run(tmp_path / "run", data)
    (run.folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="has no model: nearfar train --resume"):
        export(run)


def test_unknown_names(run):
    with pytest.raises(ValueError, match="must be one of onnx, torchscript, safetensors, not 'tflite'"):
        export(run, "tflite")
    with pytest.raises(ValueError, match='quantise must be "int8"'):
        export(run, quantise="int4")
