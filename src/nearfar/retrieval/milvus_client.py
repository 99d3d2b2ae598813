"""Connections to Milvus, and the collections of an index."""

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nearfar.errors import MissingPackageError
from nearfar.retrieval.index import MILVUS, About, Kind, RetrievalError

try:
    from pymilvus import DataType, MilvusClient, MilvusException
except ImportError as missing:
    raise MissingPackageError("an index in Milvus needs pymilvus: pip install 'nearfar[milvus]'") from missing

COLLECTION = "nearfar"
LONGEST_ID, LONGEST_LABEL, LONGEST_STATE = 4096, 1024, 1024  # bytes
STRUCTURES: Mapping[str, tuple[str, dict[str, int]]] = {
    "exact": ("FLAT", {}),
    "hnsw": ("HNSW", {"M": 32, "efConstruction": 120}),
}


# Collections


def create(client: Any, name: str, about: About) -> None:
    """Create a collection of images."""
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("key", DataType.INT64, is_primary=True)
    schema.add_field("image", DataType.VARCHAR, max_length=LONGEST_ID)
    schema.add_field("label", DataType.VARCHAR, max_length=LONGEST_LABEL)
    schema.add_field("state", DataType.VARCHAR, max_length=LONGEST_STATE)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=about.dimension)
    parameters = index_params(client, about.kind)
    client.create_collection(name, schema=schema, index_params=parameters, consistency_level="Strong")


def index_params(client: Any, kind: Kind) -> Any:
    """The search parameters of a collection."""
    structure, options = STRUCTURES[kind]
    parameters = client.prepare_index_params()
    parameters.add_index("vector", index_type=structure, metric_type="IP", params=options)
    return parameters


def write_about(client: Any, name: str, about: About) -> None:
    """Write the description of an index."""
    collection = f"{name}_about"
    if not client.has_collection(collection):
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", DataType.INT64, is_primary=True)
        schema.add_field("about", DataType.VARCHAR, max_length=60_000)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=2)  # a collection must have one
        parameters = index_params(client, "exact")
        client.create_collection(collection, schema=schema, index_params=parameters, consistency_level="Strong")
    client.upsert(collection, [{"key": 0, "about": json.dumps(about.to_dict()), "vector": [1.0, 0.0]}])
    client.flush(collection)


def read_about(client: Any, address: str, name: str) -> About:
    """Read the description of an index."""
    collection = f"{name}_about"
    rows: list[Any] = []
    if client.has_collection(collection):
        client.load_collection(collection)
        rows = client.get(collection, ids=[0], output_fields=["about"], consistency_level="Strong")
    try:
        return About.from_dict(json.loads(rows[0]["about"]))
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise RetrievalError(
            f"{MILVUS}{address}: the collection {name!r} has no description: nearfar did not make it, or it is "
            "damaged. Choose another name after #, or replace it: nearfar index RUN --rebuild"
        ) from error


# Connections


def split(address: str) -> tuple[str, str]:
    """Split an address into the URI and the name of the collection."""
    uri, _, name = address.partition("#")
    if not uri:
        raise RetrievalError(f"{MILVUS} needs an address: {MILVUS}./gallery.db or {MILVUS}http://host:19530")
    if "://" not in uri and not uri.endswith(".db"):
        raise RetrievalError(f"{MILVUS}{uri} must be a file (NAME.db) or a server (http://host:19530)")
    name = name or COLLECTION
    if not name.isidentifier() or not name.isascii():
        raise RetrievalError(f"the name of a collection must consist of letters, digits and _, not {name!r}")
    return uri, name


def is_file(uri: str) -> bool:
    """Whether a URI is a file of Milvus Lite."""
    return "://" not in uri


def connected(uri: str) -> Any:
    """Connect a client of pymilvus."""
    if is_file(uri):
        Path(uri).absolute().parent.mkdir(parents=True, exist_ok=True)
    with quiet():
        try:
            return MilvusClient(uri, token=os.environ.get("MILVUS_TOKEN", ""))
        except Exception as error:  # pymilvus, gRPC and the file system raise many types
            why = "is another process using it? Milvus Lite allows only one" if is_file(uri) else "is it running?"
            raise RetrievalError(f"{MILVUS}{uri} cannot be opened: {why} ({error})") from error


def close(client: Any, uri: str) -> None:
    """Close a client, and the server of a Milvus Lite file."""
    client.close()
    if is_file(uri):
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_server(uri)


@contextlib.contextmanager
def milvus_errors(address: str) -> Iterator[None]:
    """Convert Milvus exceptions to `RetrievalError`."""
    with quiet():
        try:
            yield
        except MilvusException as error:
            raise RetrievalError(f"{MILVUS}{address}: {error.message}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the clients' logs, which repeat raised errors with tracebacks."""
    loggers = [logging.getLogger(name) for name in ("pymilvus", "milvus_lite")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
