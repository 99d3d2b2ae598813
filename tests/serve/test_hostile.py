"""What must be refused, and what no answer may tell."""

import gzip
import io
import struct
import threading
import zlib
from functools import partial

import anyio
import numpy as np
import pytest
from PIL import Image, ImageFile, PngImagePlugin, WebPImagePlugin

from nearfar.errors import InputError
from nearfar.imaging import BrokenImageError
from nearfar.serve.images import STORED_SIDE, checked_upload, stored_png
from nearfar.serve.limits import BusyError, Limits, RateLimit, Slots
from nearfar.serve.security import HEADERS, WriteAccess
from nearfar.serve.served_gallery import UnknownItemError, item_key
from tests.serve.making import FREE, TOKEN, bearer, client, picture, served


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return served(tmp_path_factory.mktemp("served"), classes=3, each=3)


@pytest.fixture(scope="module")
def asking(run):
    return client(run)


# Places


@pytest.mark.parametrize(
    "address",
    [
        "/../../etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/app.py",
        "//etc/passwd",
        "/page/app.js",
        "/app.py",
        "/style.css/../../security.py",
        "/style.css%00.html",
        "/docs",
        "/redoc",
        "/api/runs/a/items/..%2f..%2f..%2fetc%2fpasswd/picture",
        "/api/runs/a/items/%2fetc%2fpasswd/picture",
        "/api/runs/a/items/../../../../etc/passwd/picture",
        "/api/runs/..%2fa/items",
    ],
)
def test_there_is_no_way_to_files(asking, address: str) -> None:
    answer = asking.get(address)
    assert answer.status_code in (404, 422)
    assert "root:" not in answer.text and "import" not in answer.text


@pytest.mark.parametrize("place", ["/etc/passwd", "photos/../../../etc/passwd", ""])
def test_only_images_of_the_gallery_are_opened(asking, run, place: str) -> None:
    """Even who knows how keys are made gets nothing else."""
    for address in ("picture", "neighbours"):
        assert asking.get(f"/api/runs/a/items/{item_key(place)}/{address}").status_code == 404
    assert asking.delete(f"/api/runs/a/items/{item_key(place)}", headers=bearer()).status_code == 404
    with pytest.raises(UnknownItemError):
        run.gallery.source(place)
    with pytest.raises(UnknownItemError):
        run.gallery.source(str(run.gallery.added / "../../../etc/passwd"))


def test_an_added_picture_is_kept_under_a_name_of_ours(run) -> None:
    for label in ("../../evil", "/etc/cron.d/evil", "a\\..\\b", "CON"):
        answer = client(run).post(
            "/api/runs/a/items", params={"label": label}, content=picture(seed=9), headers=bearer()
        )
        assert answer.status_code == 201 and answer.json()["added"]["label"] == label
    kept = [path.name for path in run.gallery.added.iterdir()]
    assert len(kept) == 1 and len(kept[0]) == 36  # the same picture, its class changed
    client(run).delete(f"/api/runs/a/items/{answer.json()['added']['item']}", headers=bearer())
    assert list(run.gallery.added.iterdir()) == []


# Pictures


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, *more: bytes, rows: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def many_scans() -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    content = picture("JPEG", (64, 64), progressive=True)
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * 300 + content[-2:]


BOMBS = {
    "a header of 2.5 billion pixels": png(50_000, 50_000),
    "a header of 60 million pixels": png(10_000, 6_000),
    "60 MB of nothing, packed to 60 kB": png(10_000, 6_000, rows=bytes(60_000_000)),
    "a thin one": png(1, 2**31 - 1),
    "text that unpacks to 80 MB": png(4, 4, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(80_000_000)))),
    "300 passes over all pixels": many_scans(),
    "a GIF of 65535 x 65535": b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0x80, 0, 0) + bytes(6) + b"\x3b",
    "a BMP of 60000 x 60000": b"BM" + struct.pack("<IHHI", 100, 0, 0, 54)
    + struct.pack("<IiiHHIIiiII", 40, 60000, 60000, 1, 24, 0, 0, 0, 0, 0, 0) + bytes(50),
    "a WebP of 16383 x 16383": b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4)
    + struct.pack("<I", 16382)[:3] * 2,
}  # fmt: skip


class Unpacking:
    """What Pillow unpacks: the pictures whose pixels are decoded, and the bytes that come out of zlib elsewhere."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.pictures: list[str] = []
        self.bytes = 0
        for kind in (ImageFile.ImageFile, WebPImagePlugin.WebPImageFile):  # every format that is let in, by inheritance
            monkeypatch.setattr(kind, "load", self._noting(kind.load))
        monkeypatch.setattr(PngImagePlugin.zlib, "decompressobj", lambda: self._Counted(self, zlib_object()))

    def _noting(self, load):
        def noted(image: ImageFile.ImageFile):
            self.pictures.append(type(image).__name__)
            return load(image)

        return noted

    class _Counted:
        def __init__(self, counts: "Unpacking", unpacker):
            self._counts, self._unpacker = counts, unpacker

        def decompress(self, *arguments) -> bytes:
            made = self._unpacker.decompress(*arguments)
            self._counts.bytes += len(made)
            return made

        def __getattr__(self, name: str):
            return getattr(self._unpacker, name)


zlib_object = zlib.decompressobj


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_refused_without_unpacking_them(asking, monkeypatch, bomb: str) -> None:
    unpacked = Unpacking(monkeypatch)
    for address in ("search", "identify"):
        unpacked.bytes = 0
        answer = asking.post(f"/api/runs/a/{address}", content=BOMBS[bomb])
        assert answer.status_code == 422 and "the picture cannot be read" in answer.json()["detail"]
        assert unpacked.pictures == [] and unpacked.bytes <= PngImagePlugin.MAX_TEXT_CHUNK
        assert (unpacked.bytes > 0) == ("text" in bomb)  # where Pillow stops of itself


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
def test_unpacking_is_noticed(asking, monkeypatch, kind: str) -> None:
    """The same counters, and pictures that are let in."""
    unpacked = Unpacking(monkeypatch)
    assert asking.post("/api/runs/a/search", content=picture(kind)).status_code == 200
    assert any(kind in name.upper() for name in unpacked.pictures)


def tiff() -> bytes:
    return picture("TIFF")


WRONG = {
    "nothing": b"",
    "text": b"hello",
    "a page": b"<!doctype html><script>alert(1)</script>",
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
    "EPS, which would run a program": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "PDF": b"%PDF-1.7\n",
    "TIFF, which is not allowed": tiff(),
    "an archive": gzip.compress(b"hello"),
    "a pickle": b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94.",
    "half a PNG": picture()[: len(picture()) // 2],
    "half a JPEG header": picture("JPEG")[:20],
    "noise": np.random.default_rng(0).bytes(5000),
    "zeros": bytes(5000),
    "a PNG without pixels": png(0, 0),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_picture_is_refused(asking, run, what: str) -> None:
    for address, headers in (("search", {}), ("identify", {}), ("items?label=x", bearer())):
        answer = asking.post(f"/api/runs/a/{address}", content=WRONG[what], headers=headers)
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith("the picture cannot be read: ")
        assert "/" not in answer.json()["detail"].replace("PNG/", "")  # no places, no traceback
    assert len(run.gallery.index) == 9


def test_damaged_pictures_never_harm(asking) -> None:
    """Every kind of picture, with bytes changed at random: found or refused, but no error of the server."""
    rng = np.random.default_rng(1)
    for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF"):
        whole = np.frombuffer(picture(kind), np.uint8)
        for _ in range(12):
            damaged = whole.copy()
            places = rng.integers(0, len(whole), rng.integers(1, 30))
            damaged[places] = rng.integers(0, 256, len(places))
            answer = asking.post("/api/runs/a/search", content=damaged[: rng.integers(1, len(whole) + 1)].tobytes())
            assert answer.status_code in (200, 422)


@pytest.mark.parametrize(
    "kind", ["text/html", "image/svg+xml", "multipart/form-data; boundary=x", "application/json", "x"]
)
def test_other_types_are_refused(asking, kind: str) -> None:
    for address in ("search", "identify"):
        answer = asking.post(f"/api/runs/a/{address}", content=picture(), headers={"Content-Type": kind})
        assert answer.status_code == 415 and "image/jpeg" in answer.json()["detail"]


def test_what_is_kept_is_pixels_alone(tmp_path) -> None:
    """A script in a comment, a place in EXIF: left behind. The picture is turned, and no larger than is used."""
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    exif[0x010E] = "SECRET"
    upload = checked_upload(
        picture("JPEG", (3000, 1000), exif=exif, comment=b"<script>SECRET</script>"), FREE.upload_pixels
    )
    assert (upload.width, upload.height) == (1000, 3000)
    kept = stored_png(upload)
    assert b"SECRET" not in kept
    with Image.open(io.BytesIO(kept)) as image:
        assert (image.format, image.size, image.info) == ("PNG", (round(STORED_SIDE / 3), STORED_SIDE), {})


def test_pixels_are_limited_as_told() -> None:
    assert checked_upload(picture(size=(20, 10)), 200).width == 20
    with pytest.raises(BrokenImageError, match="20 × 10 is more than 199 pixels"):
        checked_upload(picture(size=(20, 10)), 199)


# Sizes, rates and turns


def test_large_bodies_are_refused(run) -> None:
    asking = client(run, limits=Limits(rate=None, upload_bytes=1000))
    for address in ("search", "identify"):
        assert asking.post(f"/api/runs/a/{address}", content=bytes(1001)).status_code == 413
    answer = asking.post(
        "/api/runs/a/search", content=(bytes(100) for _ in range(1000))
    )  # of a length that is not told
    assert answer.status_code == 413 and answer.json()["detail"] == "a picture may have at most 1,000 bytes"
    lie = asking.post("/api/runs/a/search", content=b"x", headers={"Content-Length": "-5"})
    assert lie.status_code in (400, 413)


def test_who_asks_too_often_must_wait(run, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("nearfar.serve.app.RateLimit", partial(RateLimit, clock=lambda: now[0]))
    asking = client(run, limits=Limits(rate=1.0, burst=12))
    answers = [asking.get("/api/state") for _ in range(14)]
    assert [answer.status_code for answer in answers] == [200] * 12 + [429] * 2
    assert answers[-1].headers["retry-after"] == "1"
    now[0] = 2.5
    assert [asking.get("/api/state").status_code for _ in range(4)] == [200] * 2 + [429] * 2
    asking = client(run, limits=Limits(rate=1.0, burst=12))  # a picture counts as ten
    addresses = ("/api/runs/a/search", "/api/runs/a/identify")
    assert [asking.post(address, content=picture()).status_code for address in addresses] == [200, 429]


def test_clients_are_told_apart_and_forgotten(monkeypatch) -> None:
    monkeypatch.setattr("nearfar.serve.limits.MAX_CLIENTS", 2)
    limit = RateLimit(per_second=1, burst=1, clock=lambda: 0.0)
    assert [limit.wait(client) for client in ("192.0.2.1", "192.0.2.2", "192.0.2.1")] == [0, 0, 1]
    assert limit.wait("2001:db8::1") == 0 and limit.wait("2001:db8::2") == 1  # one network, one client
    assert limit.wait("::ffff:192.0.2.9") == 0
    assert len(limit._buckets) == 2


def test_too_many_waiting_are_sent_away(run) -> None:
    async def crowd() -> list[bool]:
        slots, done = Slots(max_running=1, max_waiting=2), []
        all_came = threading.Event()

        async def one(number: int) -> None:
            if number == 4:
                all_came.set()
            try:
                done.append(await slots.run(all_came.wait, 60))
            except BusyError:
                done.append(False)

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(one, number)
        assert await slots.run(all_came.is_set)  # there is room again
        return done

    assert sorted(anyio.run(crowd)) == [False, False, True, True, True]
    answer = client(run, limits=Limits(rate=None, max_running=1, max_waiting=-1)).post(
        "/api/runs/a/search", content=picture()
    )
    assert answer.status_code == 503 and answer.headers["retry-after"] == "1"


# Who asks


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8000", True),
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("[::1]:8000", True),
        ("192.168.1.5", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1@evil.example", False),
        ("", False),
        ("[::1", False),
    ],
)
def test_names_that_point_here_are_not_enough(asking, host: str, allowed: bool) -> None:
    answer = asking.get("/api/state", headers={"Host": host})
    assert answer.status_code == (200 if allowed else 421)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:9000"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[broken"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
    ],
)
def test_pages_elsewhere_cannot_ask(asking, headers: dict[str, str], status: int) -> None:
    assert asking.get("/api/state", headers=headers).status_code == status
    for address in ("search", "identify"):
        assert asking.post(f"/api/runs/a/{address}", content=picture(), headers=headers).status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        bearer(""),
        bearer(TOKEN + "x"),
        bearer(TOKEN[:-1]),
        bearer("\u00e9"),
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"X-Token": TOKEN},
    ],
)
def test_nothing_is_written_without_the_token(run, headers: dict[str, str]) -> None:
    sent = {name.encode(): value.encode() for name, value in headers.items()}
    asking = client(run)
    item = item_key(run.gallery.catalogue.ids[0])
    for answer in (
        asking.post("/api/runs/a/items?label=x", content=picture(seed=5), headers=sent),
        asking.delete(f"/api/runs/a/items/{item}", headers=sent),
        asking.get("/api/access", headers=sent),
    ):
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert len(run.gallery.index) == 9 and TOKEN not in answer.text


def test_a_body_is_not_even_read_without_the_token(run) -> None:
    read = []

    def body():
        read.append(1)
        yield bytes(10)

    assert client(run).post("/api/runs/a/items?label=x", content=body()).status_code == 401
    assert read == []


def test_tokens_cannot_be_tried_out(run, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("nearfar.serve.security.RateLimit", partial(RateLimit, clock=lambda: now[0]))
    asking = client(run)
    answers = [asking.get("/api/access", headers=bearer(f"guess {number}")).status_code for number in range(13)]
    assert answers == [401] * 10 + [429] * 3
    now[0] = 10.0  # seconds, for one guess more
    assert [asking.get("/api/access", headers=bearer("guess")).status_code for _ in range(2)] == [401, 429]
    assert asking.get("/api/access", headers=bearer()).status_code == 204  # who has it is let in all the same
    assert WriteAccess(None).possible is False


def test_read_only(run) -> None:
    asking = client(run, token=None)
    assert asking.get("/api/state").json()["writable"] is False
    for token in ("", "None", TOKEN):
        answer = asking.post("/api/runs/a/items?label=x", content=picture(), headers=bearer(token))
        assert answer.status_code == 403 and "--read-only" in answer.json()["detail"]


# What every answer says


@pytest.mark.parametrize(
    ("method", "address", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/app.js", 200),
        ("GET", "/api/state", 200),
        ("GET", "/nothing", 404),
        ("PUT", "/api/state", 405),
        ("GET", "/api/runs/a/items?limit=0", 422),
        ("GET", "http://evil.example/", 421),
        ("DELETE", "/api/runs/a/items/0000000000000000", 401),
    ],
)
def test_every_answer_has_the_headers(asking, method: str, address: str, status: int) -> None:
    answer = asking.request(method, address)
    assert answer.status_code == status
    assert HEADERS.items() <= {name.title(): value for name, value in answer.headers.items()}.items()
    policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert "cache-control" in answer.headers and "access-control-allow-origin" not in answer.headers


def test_errors_tell_nothing(run, monkeypatch, caplog) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the secret of /home/me")

    monkeypatch.setattr(run, "search_item", fail)
    answer = client(run).get(f"/api/runs/a/items/{item_key('x')}/neighbours")
    assert answer.status_code == 500 and answer.json() == {"detail": "internal error: see the server's log"}
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "the secret of /home/me" in caplog.text


def test_errors_for_the_operator_are_printed_and_not_told(run, monkeypatch, caplog) -> None:
    """They say what to do, and may name files; they are no bugs, and have no traceback."""

    def fail(*_: object) -> None:
        raise InputError("/home/me/data.csv is damaged: write it anew")

    monkeypatch.setattr(run, "search_item", fail)
    answer = client(run).get(f"/api/runs/a/items/{item_key('x')}/neighbours")
    assert answer.status_code == 500 and answer.json() == {"detail": "the request failed: see the server's log"}
    assert "/home/me/data.csv is damaged: write it anew" in caplog.text and "Traceback" not in caplog.text


def test_the_page_is_the_same_until_it_changes(asking) -> None:
    first = asking.get("/style.css")
    assert asking.get("/style.css", headers={"If-None-Match": first.headers["etag"]}).status_code == 304
