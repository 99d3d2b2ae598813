"""Addresses and checksums of the data sets and weights that recipes need and nearfar does not contain."""

from dataclasses import dataclass
from pathlib import Path

BN_INCEPTION = "bn_inception-52deb4733.pth"
RESNET_50 = "resnet50-0676ba61.pth"  # torchvision's IMAGENET1K_V1


@dataclass(frozen=True)
class Download:
    """A file with its address and published checksum."""

    name: str
    source: str
    checksum: str = "no checksum is published"

    def __str__(self) -> str:
        return f"{self.name}: {self.source} ({self.checksum})"


def _named_after_its_digest(name: str, source: str) -> Download:
    """A weights file whose name ends with the first digits of its SHA-256, PyTorch's convention."""
    return Download(name, source, f"its name says that its SHA-256 begins with {Path(name).stem.partition('-')[2]}")


WEIGHTS = {
    BN_INCEPTION: _named_after_its_digest(
        BN_INCEPTION,
        f"http://data.lip6.fr/cadene/pretrainedmodels/{BN_INCEPTION}, which the papers' code uses",
    ),
    RESNET_50: _named_after_its_digest(RESNET_50, f"torchvision's https://download.pytorch.org/models/{RESNET_50}"),
}

DATA = {
    "cub": Download(
        "CUB_200_2011.tgz",
        "https://data.caltech.edu/records/65de6-vp158",
        "MD5 97eceeb196236b17998738112f37df78",
    ),
    "cars": Download("Cars196", "https://ai.stanford.edu/~jkrause/cars/car_dataset.html, or a mirror"),
    "sop": Download(
        "Stanford_Online_Products.zip",
        "https://cvgl.stanford.edu/projects/lifted_struct/",
        "MD5 7f73d41a2f44250d4779881525aea32e",
    ),
    "in-shop": Download("In-Shop Clothes Retrieval", "http://mmlab.ie.cuhk.edu.hk/projects/DeepFashion.html"),
    "market": Download("Market-1501-v15.09.15", "from its authors, or a mirror"),
    "msmt17": Download("MSMT17", "https://www.pkuvmc.com/dataset.html, on request"),
    "faces": Download("MS-Celeb-1M, cleaned and aligned", "insightface's model zoo lists such sets (MS1MV2, MS1MV3)"),
}
