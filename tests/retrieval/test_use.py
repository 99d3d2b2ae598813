"""From a run to answers: images into an index, searched, calibrated, shown; embeddings in files; what goes wrong."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import nearfar.data
from nearfar.cli import main
from nearfar.data import Pixels, Table
from nearfar.imaging import BrokenImageError
from nearfar.models import Embedder
from nearfar.retrieval.build import add_images
from nearfar.retrieval.calibration import calibrated, described
from nearfar.retrieval.embed import write_embeddings
from nearfar.retrieval.encoder import Encoder
from nearfar.retrieval.gallery import Pictures, gallery_of, open_gallery
from nearfar.retrieval.index import RetrievalError, WrongModelError, make_index, open_index
from nearfar.retrieval.search import search, threshold_value
from nearfar.training.held_out import HeldOut
from nearfar.training.runs import Run
from tests.retrieval.making import embedder, photos, run
from tests.training.making import patterns


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return photos(tmp_path / "photos", classes=8, each=4)


def similarities(model: Embedder, query: Path, others: list[Path]) -> dict[str, float]:
    """By the model itself, one image at a time."""
    a = model.embed([query])[0].double()
    result = {}
    for other in others:
        b = model.embed([other])[0].double()
        result[str(other)] = float(torch.dot(a, b) / (a.norm() * b.norm()))
    return result


# The encoder


def test_the_fingerprint_tells_models_and_preparations_apart(tmp_path: Path) -> None:
    own = Encoder(embedder()).fingerprint
    assert own == Encoder(embedder()).fingerprint and len(own) == 32
    others = [Encoder(embedder(1)), Encoder(embedder(), flip=True), Encoder(embedder(pool="max"))]
    model = embedder()
    model.transform = nearfar.data.EvalTransform(16, 18)
    assert own not in {other.fingerprint for other in (*others, Encoder(model))}
    path = embedder().save(tmp_path / "model.safetensors")
    assert Encoder(Embedder.load(path)).fingerprint == own
    with torch.no_grad():
        next(model.parameters())[0] += 1e-3
    model.transform = model.preprocess
    assert Encoder(model).fingerprint != own


def test_a_flipping_encoder_averages_an_image_and_its_mirror_image() -> None:
    image = np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    model = embedder()
    both = model.embed([image, np.ascontiguousarray(image[:, ::-1])]).numpy().sum(0)
    found = Encoder(model, flip=True).embed([image])[0]
    assert found == pytest.approx(both / np.linalg.norm(both), abs=1e-5)


@pytest.mark.parametrize("options", [{"freeze_trunk": True, "head_start": "random"}, {"head": None, "dimension": None}])
def test_frozen_trunks_take_features_from_the_cache(
    pictures: Path, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = embedder(**options)
    encoder, gallery = Encoder(model), open_gallery([pictures])
    done: list[int] = []
    first = np.concatenate(list(encoder.gallery(gallery.images, advance=done.append)))
    assert first == pytest.approx(model.embed(gallery.table.paths).numpy(), abs=1e-5)
    assert sum(done) == 32
    monkeypatch.setattr(Embedder, "stream", lambda *args, **options: pytest.fail("computed again"))
    assert np.array_equal(np.concatenate(list(encoder.gallery(gallery.images))), first)


# Galleries


def test_ids_are_paths_or_rows_and_lead_back_to_the_pictures(pictures: Path, tmp_path: Path) -> None:
    gallery = open_gallery([pictures], split="test")
    assert len(gallery) == 16 and gallery.ids[0] == str(pictures / "pattern 4" / "016.png")
    assert gallery.label(0) == "pattern 4"
    found = Pictures()
    assert found.source(gallery.ids[0]) == gallery.ids[0]
    table = patterns(classes=4, each=2, size=16)
    assert isinstance(table.images, Pixels)
    np.savez(tmp_path / "data.npz", images=np.stack([table.images[row] for row in range(8)]), labels=table.labels)
    rows = open_gallery([tmp_path / "data.npz"])
    assert rows.ids[3] == f"{tmp_path / 'data.npz'}#3"
    assert np.array_equal(found.source(rows.ids[3]), table.images[3])  # type: ignore[arg-type]
    assert found.source("nowhere.png") is None and found.source("nowhere#3") is None
    assert found.source(f"{tmp_path / 'data.npz'}#8") is None
    with pytest.raises(ValueError, match="has no query rows"):
        open_gallery([pictures], split="query")
    features = Table("f", np.zeros(1, int), ("a",), np.zeros(1, np.int8), None, {"features": np.zeros((1, 2))})
    with pytest.raises(RetrievalError, match="has no images to embed, only features"):
        gallery_of(features, "f")
    with pytest.raises(RetrievalError, match="one data set, or image files"):
        open_gallery([pictures, tmp_path])
    with pytest.raises(FileNotFoundError, match=r"there is no .*none\.png"):
        open_gallery([tmp_path / "none.png"])


# Building and searching


def test_only_what_is_new_or_changed_is_embedded(pictures: Path, tmp_path: Path) -> None:
    encoder = Encoder(embedder(), max_broken=0.1)
    index = make_index(tmp_path / "index", encoder.about())
    done: list[int] = []
    added = add_images(index, encoder, open_gallery([pictures]), advance=done.append)
    assert (added.embedded, added.unchanged, added.broken, len(index), sum(done)) == (32, 0, 0, 32, 32)
    changed, copied = pictures / "pattern 0" / "000.png", pictures / "pattern 0" / "new.png"
    shutil.copy(pictures / "pattern 7" / "031.png", copied)
    shutil.copy(pictures / "pattern 6" / "027.png", changed)
    (pictures / "pattern 0" / "broken.png").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match=r"1 of 34 images are broken"):  # of all, though three are new
        again = add_images(index, encoder, open_gallery([pictures]))
    assert (again.embedded, again.unchanged, again.broken, len(index)) == (2, 31, 1, 33)
    assert {hit.id for hit in search(index, encoder, [copied], k=2)[0].hits} == {
        str(copied), str(pictures / "pattern 7" / "031.png")
    }  # fmt: skip
    assert {hit.id for hit in search(index, encoder, [changed], k=2)[0].hits} == {
        str(changed), str(pictures / "pattern 6" / "027.png")
    }  # fmt: skip


def test_too_many_unreadable_images_leave_the_index_as_it_was(pictures: Path, tmp_path: Path) -> None:
    encoder = Encoder(embedder())
    index = make_index(tmp_path / "index", encoder.about())
    add_images(index, encoder, open_gallery([pictures / "pattern 1" / "004.png"]))
    (pictures / "pattern 1" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(BrokenImageError, match=r"broken\.png: not an image"):
        add_images(index, encoder, open_gallery([pictures]))
    assert len(open_index(tmp_path / "index")) == 1


def test_the_nearest_are_those_the_model_finds_most_similar(pictures: Path, tmp_path: Path) -> None:
    model = embedder()
    encoder = Encoder(model)
    index = make_index(tmp_path / "index", encoder.about())
    add_images(index, encoder, open_gallery([pictures]))
    query = tmp_path / "query.png"
    Image.open(pictures / "pattern 3" / "012.png").rotate(90).save(query)
    expected = similarities(model, query, sorted(pictures.rglob("*.png")))
    result = search(index, encoder, [query], k=6)[0]
    assert result.query == str(query) and result.label == ""
    assert [hit.id for hit in result.hits] == sorted(expected, key=expected.get, reverse=True)[:6]  # type: ignore[arg-type]
    assert [hit.similarity for hit in result.hits] == pytest.approx(
        sorted(expected.values(), reverse=True)[:6], abs=1e-5
    )
    assert all(hit.label == Path(hit.id).parent.name for hit in result.hits)
    with pytest.raises(WrongModelError):
        search(index, Encoder(embedder(1)), [query])
    with pytest.raises(WrongModelError):
        add_images(index, Encoder(embedder(1)), open_gallery([pictures]))
    with pytest.raises(BrokenImageError, match=r"missing\.png: no such file$"):
        search(index, encoder, [tmp_path / "missing.png"])


def test_a_model_of_features_embeds_no_images(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {backbone: features}", encoding="utf-8")
    with pytest.raises(RetrievalError, match="was trained on features, and has no trunk"):
        Encoder.of_run(tmp_path)


# Thresholds


def test_thresholds_that_are_given_stored_or_missing(tmp_path: Path) -> None:
    encoder = Encoder(embedder(), name="runs/x")
    bare = make_index(tmp_path / "bare", encoder.about())
    assert threshold_value(bare, None) is None
    assert threshold_value(bare, 0.5) == threshold_value(bare, "0.5") == 0.5
    with pytest.raises(RetrievalError, match=r"has no calibrated threshold.*nearfar index RUN --far"):
        threshold_value(bare, "calibrated")
    with pytest.raises(RetrievalError, match=r"a threshold must be .calibrated. or a number such as 0\.6, not 'high'"):
        threshold_value(bare, "high")
    stored = make_index(tmp_path / "stored", encoder.about(threshold={"threshold": 0.71}))
    assert threshold_value(stored, "calibrated") == 0.71


def held_out(made: Run, dimension: int = 8, seed: int = 0) -> HeldOut:
    """Embeddings of twelve classes of six, which lie about their means; kept in the run."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(12), 6)
    x = rng.normal(size=(12, dimension))[labels] + 0.5 * rng.normal(size=(72, dimension))
    found = HeldOut(x.astype(np.float32), labels, np.zeros(72, np.int64), True)
    found.save(made)
    return found


def test_calibration_on_what_the_run_held_out(pictures: Path, tmp_path: Path) -> None:
    made = run(tmp_path / "run", pictures, threshold=0.7)
    encoder = Encoder.of_run(made)
    own = calibrated(made, encoder)
    assert own is not None and own["threshold"] == 0.7
    assert "has not been measured" in described(own)
    with pytest.raises(RetrievalError, match="has no held-out rows"):
        calibrated(made, encoder, far=0.1)
    held = held_out(made)
    found = calibrated(made, encoder, far=0.1)
    assert found is not None
    x = held.embeddings / np.linalg.norm(held.embeddings, axis=1, keepdims=True)
    accepted = {True: [], False: []}
    for i in range(72):
        for j in range(i):
            accepted[bool(held.labels[i] == held.labels[j])].append(float(x[i] @ x[j]) >= found["threshold"])
    assert np.mean(accepted[False]) == pytest.approx(found["far"]) and found["far"] <= 0.1
    assert np.mean(accepted[True]) == pytest.approx(found["tar"])
    # measured on the run's test classes: the second half of eight
    test = [path for path in sorted(pictures.glob("*/*.png")) if path.parent.name >= "pattern 4"]
    y, names = encoder.model.embed(test).numpy(), [path.parent.name for path in test]
    right = {True: [], False: []}
    for i in range(len(test)):
        for j in range(i):
            right[names[i] == names[j]].append(float(y[i] @ y[j]) >= found["threshold"])
    assert found["measured"]["far"] == pytest.approx(np.mean(right[False]))
    assert found["measured"]["tar"] == pytest.approx(np.mean(right[True])) and found["measured"]["classes"] == 4
    told = described(found)
    assert f"from a similarity of {found['threshold']:.3f} on (calibrated for a false-accept rate of 10 %)" in told
    assert "Measured on 4 unseen classes" in told
    assert described(None) == "no calibrated threshold"
    assert calibrated(run(tmp_path / "none", pictures), Encoder.of_run(tmp_path / "none")) is None


def test_thresholds_that_cannot_be_promised_say_why(pictures: Path, tmp_path: Path) -> None:
    made = run(tmp_path / "run", pictures)
    rng = np.random.default_rng(0)
    few = HeldOut(rng.normal(size=(12, 8)).astype(np.float32), np.arange(12) // 3, np.zeros(12, np.int64), True)
    few.save(made)
    with pytest.raises(RetrievalError, match="cannot be calibrated: only 4 classes"):
        calibrated(made, Encoder.of_run(made), precision=0.9)


def test_thresholds_of_codes_are_for_codes(pictures: Path, tmp_path: Path) -> None:
    made = run(tmp_path / "run", pictures, head="hash", dimension=12)
    encoder = Encoder.of_run(made)
    assert encoder.similarity == "hamming"
    held = held_out(made, 12)
    found = calibrated(made, encoder, far=0.2)
    assert found is not None
    between = (1 - found["threshold"]) * 12 / 2  # in bits: thresholds lie half-way between two distances
    assert between * 2 == pytest.approx(round(between * 2), abs=1e-4)
    codes = np.where(held.embeddings > 0, 1, -1)
    same, upper = held.labels[:, None] == held.labels, np.triu(np.ones((72, 72), bool), 1)
    assert ((codes @ codes.T / 12)[~same & upper] >= found["threshold"]).mean() == pytest.approx(found["far"])


# Files of embeddings


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_embeddings_in_a_file(pictures: Path, tmp_path: Path, ending: str) -> None:
    (pictures / "pattern 2" / "broken.png").write_bytes(b"no picture")
    encoder = Encoder(embedder(), max_broken=0.1, name="runs/x")
    out = tmp_path / "made" / f"x.{ending}"
    with pytest.warns(UserWarning, match="1 of 33 images are broken"):
        written = write_embeddings(encoder, open_gallery([pictures]), out)
    assert (written.images, written.broken) == (32, 1)
    paths = sorted(path for path in pictures.rglob("*.png") if path.name != "broken.png")
    expected = encoder.model.embed(paths).numpy()
    if ending == "npz":
        with np.load(out) as arrays:
            assert arrays["paths"].tolist() == [str(path) for path in paths]
            assert arrays["labels"].tolist() == [path.parent.name for path in paths]
            assert arrays["embeddings"] == pytest.approx(expected, abs=1e-6)
            assert str(arrays["model"]) == encoder.fingerprint
        table = nearfar.data.open(out)
        assert table.features is not None and table.features.shape == (32, 8)
        assert table.label_name(31) == "pattern 7" and table.split_names == ("train", "test")
        return
    from pyarrow import parquet

    table = parquet.read_table(out)
    assert table.column("path").to_pylist() == [str(path) for path in paths]
    assert set(table.column("split").to_pylist()) == {"train", "test"}
    assert np.stack(table.column("embedding").to_numpy()) == pytest.approx(expected, abs=1e-6)
    assert table.schema.metadata[b"nearfar.model"].decode() == encoder.fingerprint


def test_a_file_is_whole_or_not_there(pictures: Path, tmp_path: Path) -> None:
    (pictures / "pattern 2" / "broken.png").write_bytes(b"no picture")
    out = tmp_path / "x.npz"
    out.write_bytes(b"before")
    with pytest.raises(BrokenImageError):
        write_embeddings(Encoder(embedder()), open_gallery([pictures]), out)
    assert out.read_bytes() == b"before" and not list(tmp_path.glob(".x*"))
    with pytest.raises(RetrievalError, match=r"NAME.parquet or NAME.npz, not to .*x\.csv"):
        write_embeddings(Encoder(embedder()), open_gallery([pictures]), tmp_path / "x.csv")


# Commands


def test_index_search_and_embed_from_the_command_line(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = run(tmp_path / "run", pictures, threshold=0.6)
    held_out(made)
    folder = str(made.folder)
    query = str(pictures / "pattern 3" / "012.png")

    def said(*words: str, code: int = 0) -> str:
        assert main(list(words)) == code
        printed = capsys.readouterr()
        return printed.out if code == 0 else printed.err

    assert "run/index: make one with nearfar index RUN" in said("search", folder, query, code=2)
    assert "there is no index" in said("index", folder, "--compact", code=2)
    first = said("index", folder)
    assert "32 images (exact, cosines)\n32 embedded, 0 unchanged" in first and "from a similarity of 0.600 on" in first
    assert "0 embedded, 32 unchanged" in said("index", folder)
    listed = said("search", folder, query, "--k", "2")
    assert f"2 found\n    1  1.0000  pattern 3                 {query}" in listed
    assert "\ntwo images count as the same from a similarity of 0.600 on" in listed
    page = (tmp_path / "run" / "search.html").read_text(encoding="utf-8")
    assert page.count("data:image/webp") == 3 and "012.png: 2 found" in page
    found = json.loads(said("search", folder, query, "--k", "32", "--threshold", "calibrated", "--json"))
    assert found[0]["label"] == "pattern 3" and all(hit["similarity"] >= 0.6 for hit in found[0]["hits"])
    assert "4 removed" in said("index", folder, "--remove", str(pictures / "pattern 3"))
    assert "has no image" in said("index", folder, "--remove", "nowhere", code=2)
    (pictures / "pattern 1" / "004.png").unlink()
    assert "27 images" in said("index", folder, "--prune")
    assert "1 embedded" in said("index", folder, query)
    changed = json.loads(said("index", folder, "--kind", "hnsw", "--far", "0.05", "--json"))
    assert changed["kind"] == "hnsw" and changed["recall"]["recall"] == 1 and changed["images"] == 31
    assert changed["threshold"]["wished"] == 0.05
    out = tmp_path / "x.npz"
    assert f"{out}: 16 embeddings of 8 numbers" in said("embed", folder, "--split", "test", "--out", str(out))
    other = str(run(tmp_path / "other", pictures, seed=1).folder)
    place = ("--index", f"{folder}/index")
    assert "was made with another model" in said("index", other, *place, code=2)
    assert "was made with another model" in said("search", other, query, *place, code=2)
    assert "31 embedded" in said("index", other, *place, "--rebuild")
    assert "has no calibrated threshold" in said("search", other, query, *place, "--threshold", "calibrated", code=2)
    (tmp_path / "empty").mkdir()
    assert "contains no images" in said("index", folder, str(tmp_path / "empty"), code=2)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    assert "broken.png: not an image" in said("search", other, str(broken), *place, code=2)


def test_milvus_from_the_command_line(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, where = str(run(tmp_path / "run", pictures).folder), f"milvus:{tmp_path / 'gallery.db'}"
    query = str(pictures / "pattern 3" / "012.png")
    for place in ((), ("--index", where)):
        assert main(["index", folder, *place]) == 0
        assert "32 embedded" in capsys.readouterr().out
    found = []
    for place in ((), ("--index", where)):
        assert main(["search", folder, query, "--json", *place]) == 0
        found.append(json.loads(capsys.readouterr().out)[0]["hits"])
    assert [hit["id"] for hit in found[0]] == [hit["id"] for hit in found[1]]


def test_the_page_is_opened(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(run(tmp_path / "run", pictures).folder)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    image = str(pictures / "pattern 0" / "000.png")
    assert main(["index", folder, image]) == 0
    assert main(["search", folder, image, "--open", "--out", str(tmp_path / "found.html")]) == 0
    assert opened == [(tmp_path / "found.html").as_uri()]
