"""`nearfar report`, and the report that training leaves."""

import numpy as np
import pytest
from PIL import Image

import nearfar
from nearfar.cli import main
from nearfar.data import open as open_data
from nearfar.training.config import TrainConfig
from nearfar.training.finish import write_report
from nearfar.training.runs import Run
from tests.report.making import embeddings, table


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name in "abcdefgh":
        (folder / name).mkdir()
        base = rng.uniform(0, 255, (4, 4, 3)).repeat(4, 0).repeat(4, 1)
        for number in range(4):
            noisy = (base + rng.normal(0, 20, base.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(folder / name / f"{number}.png")
    return folder


def test_training_leaves_a_report_and_the_command_writes_the_same_again(photos, tmp_path, capsys) -> None:
    small = {"backbone": "convnet", "options": {"width": 8}, "size": 16, "dimension": 8, "batch_size": 8, "workers": 0}
    run = nearfar.train(photos, out=str(tmp_path / "run"), max_steps=2, accelerator="cpu", quiet=True, **small)
    path = run.folder / "report.html"
    page = path.read_text(encoding="utf-8")
    assert len(open_data(photos).split("test")) == 16
    assert "16 images of 4 classes unseen in training" in page
    assert page.count("data:image/webp") > 16
    path.unlink()
    assert main(["report", str(run.folder)]) == 0
    assert capsys.readouterr().out.strip() == str(path)
    assert path.read_text(encoding="utf-8") == page


def test_a_folder_without_a_model_is_told(tmp_path, capsys) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "is not a run: it has no config.yaml: give a folder that nearfar train left" in capsys.readouterr().err


def test_a_report_that_fails_fails_no_run(tmp_path) -> None:
    made = table()
    (tmp_path / "report.html").mkdir()  # in the way
    with pytest.warns(UserWarning, match=r"the run is complete, but its report could not be written: .*nearfar report"):
        write_report(Run(tmp_path), embeddings(made.labels), made, TrainConfig())
