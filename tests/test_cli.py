"""The command line: from words to runs, and from mistakes to advice."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

import nearfar
from nearfar.cli import COMMANDS, main
from nearfar.losses import list_losses
from nearfar.training.runs import Run
from tests.training.making import patterns

NETWORK = ["--backbone", "convnet", "--options", "{width: 8}", "--size", "16", "--dimension", "8", "--workers", "0"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of 16 classes, without a split."""
    table = patterns(classes=16, each=6)
    folder = tmp_path_factory.mktemp("data") / "photos"
    for row in range(len(table)):
        path = folder / table.label_name(row) / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        assert table.images is not None
        Image.fromarray(np.asarray(table.images[row])).save(path)
    return folder


def call(*words: str) -> int:
    return main(list(words))


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"nearfar {nearfar.__version__}\n"
    assert call("--help") == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)
    assert call() == 2


def test_a_reader_that_stops_reading() -> None:
    """As in `nearfar losses | head -1`."""
    command = [sys.executable, "-c", "from nearfar.cli import main; raise SystemExit(main(['losses']))"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:  # argparse leaves so
        call(command, "--help")
    assert stop.value.code == 0
    assert f"usage: nearfar {command}" in capsys.readouterr().out


def test_nothing_heavy_is_loaded_to_start() -> None:
    code = "import sys, nearfar.cli, nearfar.commands.train; print(sorted({'torch', 'lightning', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "there is no command trian: did you mean train"),
        (["train", "--frezee"], "there is no option --frezee: did you mean --freeze"),
        (["train", "--loss", "CircelLoss"], "did you mean CircleLoss"),
        (["train", "--loss", "CircleLoss", "--loss.gama", "3"], "did you mean gamma"),
        (["train", "a", "b"], "takes one data set"),
        (["train", "no/such/folder"], "there is no no/such/folder"),
        (["train", "--config", "none.yaml"], "there is no configuration file none.yaml"),
        (["train", "--recipe", "cub/proxy-ancor"], "did you mean cub/proxy-anchor"),
        (["train", "--recipe", "a", "--config", "b"], "exclude each other"),
        (["train", "--resume", "x", "--epochs", "3"], "takes no options but"),
        (["train", "x", "--data.path", "y"], "set only one of them"),
        (["evaluate", "no/run"], "there is no run no/run: give a folder that nearfar train left"),
        (["search", "no/run", "x.jpg"], "there is no run no/run: give a folder that nearfar train left"),
        (["losses", "Circle"], "did you mean CircleLoss"),
        (["doctor", "--run", "x", "--epochs", "3"], "leave everything else out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*words) == 2
    found = capsys.readouterr()
    assert message in found.err and found.err.startswith("nearfar") and "Traceback" not in found.err


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("losses") == 0
    listed = capsys.readouterr().out
    assert all(info.name in listed for info in list_losses())
    assert call("losses", "CircleLoss") == 0
    assert "--loss.gamma" in capsys.readouterr().out
    assert call("recipes") == 0
    assert "cub/proxy-anchor" in capsys.readouterr().out
    assert call("recipes", "cub/proxy-anchor") == 0
    assert yaml.safe_load(capsys.readouterr().out)["loss"][0]["name"] == "ProxyAnchorLoss"
    assert call("env") == 0
    assert json.loads(capsys.readouterr().out)["nearfar"] == nearfar.__version__


def test_print_config_is_a_configuration(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(photos), "--loss", "CircleLoss", "--loss.gamma", "64", "--seed", "5"]
    assert call("train", *words, "--print_config") == 0
    text = capsys.readouterr().out
    values = yaml.safe_load(text)
    assert values["loss"] == [{"name": "CircleLoss", "gamma": 64}] and values["seed"] == 5
    assert values["model"]["backbone"] == "efficientnet-lite0" and values["sampler"]["kind"] == "pk"
    assert values["data"]["path"] == str(photos)
    (tmp_path / "again.yaml").write_text(text, encoding="utf-8")
    assert call("train", "--config", str(tmp_path / "again.yaml"), "--print_config") == 0
    assert capsys.readouterr().out == text


def test_from_a_folder_to_a_measured_model(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert call("train", str(photos), *NETWORK, "--epochs", "2", "--batch_size", "16", "--out", str(out)) == 0
    shown = capsys.readouterr()
    assert "no split is given: the first 8 classes" in shown.err and "fold 3 of 3" in shown.err
    for expected in ("start", "after (kept)", "recall@1", "unseen classes", f"nearfar evaluate {out} DATA"):
        assert expected in shown.out
    after = Run(out).metrics["after"]
    assert call("evaluate", str(out), "--json") == 0
    assert json.loads(capsys.readouterr().out)["map@r"] == after["map@r"]
    assert call("evaluate", str(out), str(photos), "--ci", "--ks", "1", "3") == 0
    assert "recall@3" in capsys.readouterr().out
    assert call("train", str(photos), *NETWORK, "--out", str(out)) == 2
    assert "already contains a run: choose another --out" in capsys.readouterr().err
    call("doctor", "--run", str(out))
    assert "positive pairs" in capsys.readouterr().out


def test_compare_helps_with_options_that_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call("compare", "--help")
    shown = capsys.readouterr().out
    assert "--losses NAME" in shown and "--batch-size" in shown and shown.count("--out ") == 1
    assert not any(f"  {name} " in shown for name in ("--loss", "--lr", "--optimiser.proxies", "--loss.weight"))


def test_doctor_sees_a_bad_batch(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", str(photos), *NETWORK, "--loss", "TripletMarginLoss", "--p", "2", "--flip", "0"]
    assert call(*words, "--k", "12") == 1  # of six images
    shown = " ".join(capsys.readouterr().out.split())
    assert "test 48 of 8 classes" in shown
    assert shown.count("no split is given: the first 8 classes") == 1
    assert "to do, worst first 1. 24 of 24 samples have an exact copy of their class in the batch" in shown


def test_completion_in_bash(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("completion", "bash") == 0
    script = capsys.readouterr().out

    def completed(*words: str) -> list[str]:
        line = " ".join(f'"{word}"' for word in words)
        call_it = "$(complete -p nearfar | sed 's/.*-F \\([^ ]*\\).*/\\1/')"
        ask = (
            f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; COMP_LINE='{' '.join(words)}'; "
            f'COMP_POINT=${{#COMP_LINE}}; {call_it}; printf "%s\\n" "${{COMPREPLY[@]}}"'
        )
        return subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.split()

    assert completed("nearfar", "tra") == ["train"]
    assert "--freeze" in completed("nearfar", "train", "--fr")
    assert "CircleLoss" in completed("nearfar", "train", "--loss", "Circ")
    assert "cub/circle-pa-protocol" in completed("nearfar", "train", "--recipe", "cub/ci")
    assert set(completed("nearfar", "")) == set(COMMANDS)


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
def test_completion_of_other_shells(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("completion", shell) == 0
    script = capsys.readouterr().out
    assert "CircleLoss" in script
    assert "freeze" in script
