"""Layouts of data sets on disk. Each recognises its data sets and reads them into a `Table`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nearfar.data.layouts import (
    arrays,
    cars,
    cub,
    faces,
    folders,
    huggingface,
    insightface,
    products,
    reid,
    tabular,
    templates,
)
from nearfar.data.tables import Table


@dataclass(frozen=True)
class Layout:
    """A layout. `recognise` checks a few files; `read` reads the lists but decodes no images."""

    name: str
    recognise: Callable[[Path], bool]
    read: Callable[[Path], Table]


# In the order in which they are tried: distinctive files first, plain folders of images last.
LAYOUTS = (
    Layout("cub", cub.recognise, cub.read),
    Layout("cars", cars.recognise, cars.read),
    Layout("sop", products.recognise_sop, products.read_sop),
    Layout("in-shop", products.recognise_in_shop, products.read_in_shop),
    Layout("market-1501", reid.recognise_market, reid.read_market),
    Layout("msmt17", reid.recognise_msmt17, reid.read_msmt17),
    Layout("lfw", faces.recognise_lfw, faces.read_lfw),
    Layout("ytf", faces.recognise_ytf, faces.read_ytf),
    Layout("cfp", faces.recognise_cfp, faces.read_cfp),
    Layout("agedb", faces.recognise_agedb, faces.read_agedb),
    Layout("pair-list", faces.recognise_pair_list, faces.read_pair_list),
    Layout("ijb", templates.recognise_ijb, templates.read_ijb),
    Layout("megaface", templates.recognise_megaface, templates.read_megaface),
    Layout("recordio", insightface.recognise_records, insightface.read_records),
    Layout("bin", insightface.recognise_bin, insightface.read_bin),
    Layout("hugging-face", huggingface.recognise, huggingface.read),
    Layout("parquet", tabular.recognise_parquet, tabular.read_parquet),
    Layout("csv", tabular.recognise_csv, tabular.read_csv),
    Layout("arrays", arrays.recognise, arrays.read),
    Layout("folders", folders.recognise, folders.read),
)
