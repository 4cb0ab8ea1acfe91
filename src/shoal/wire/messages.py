"""Every Kafka message except Produce and Fetch: its class by API key and version, header and bytes.

The classes come from kio, each from a module of its own that is imported when first used: all of
them would cost 2 seconds and 40 MB. The bytes are encoded and decoded by `shoal.wire.codec`.

A request begins with its API key, version, correlation id and client id; a response with the
correlation id. Flexible versions add tagged fields to either header, with two exceptions: the
client id keeps its old length, and the response to ApiVersions keeps its old header, so that
peers that know nothing of each other yet can understand it.
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from struct import Struct
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from shoal.wire.api_keys import ApiKey, is_flexible
from shoal.wire.errors import UnsupportedVersion
from shoal.wire.primitives import INT32, Cursor, put_string, put_tags

PayloadT = TypeVar("PayloadT")
Bytes = bytes | bytearray | memoryview
# Tagged fields of a header beyond Apache Kafka's; peers that do not know them skip them.
Tags = Sequence[tuple[int, bytes | bytearray]]

_REQUEST_HEADER = Struct(">hhi")
# Much faster than a call of the enumeration, which brokers would make for every request.
_KEYS = {int(key): key for key in ApiKey}


class RequestFrame(NamedTuple):
    """The header of a request; its body begins at `body_position` of the frame."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


@cache
def request_class(api_key: int, version: int) -> type[Any]:
    """The class of a request; `UnsupportedVersion` if it does not exist."""
    return _message_class(api_key, version, "request")


@cache
def response_class(api_key: int, version: int) -> type[Any]:
    """The class of a response; `UnsupportedVersion` if it does not exist."""
    return _message_class(api_key, version, "response")


@cache
def data_class(name: str, version: int) -> type[Any]:
    """The class of a message that is neither request nor response, by kio's name."""
    return _find_class(name, version, "data")


def encode_data(message: Any) -> bytes:
    """The bytes of a message without a header."""
    output = bytearray()
    _codec().put_entity(output, message)
    return bytes(output)


@cache
def schema_versions(api_key: int) -> tuple[int, int]:
    """The lowest and the highest version that have classes."""
    package = _import(f"kio.schema.{_find_key(api_key).name.lower()}")
    versions = [
        int(module.name[1:])
        for module in pkgutil.iter_modules(package.__path__)
        if module.name[1:].isdigit()
    ]
    return min(versions), max(versions)


def encode_request(
    request: Any, *, correlation_id: int, client_id: str | None, tags: Tags = ()
) -> bytes:
    """Header and body of a request, without the frame's length."""
    output = put_request_header(
        ApiKey(request.__api_key__),
        request.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
        tags=tags,
    )
    _codec().put_entity(output, request)
    return bytes(output)


def put_request_header(
    api_key: ApiKey,
    api_version: int,
    *,
    correlation_id: int,
    client_id: str | None,
    tags: Tags = (),
) -> bytearray:
    """The header of a request, for a body to be appended to."""
    output = bytearray(_REQUEST_HEADER.pack(api_key, api_version, correlation_id))
    put_string(output, client_id, flexible=False)
    if is_flexible(api_key, api_version):
        put_tags(output, tags)
    return output


def decode_request_header(frame: Bytes) -> RequestFrame:
    """The header of any request whose API key is known, even of an unknown version."""
    cursor = Cursor(memoryview(frame), flexible=False)
    number, api_version, correlation_id = cursor.unpack(_REQUEST_HEADER, "request header")
    api_key = _find_key(number)
    client_id = cursor.nullable_string("client id")
    if is_flexible(api_key, api_version):
        cursor.tags("request header")
    return RequestFrame(api_key, api_version, correlation_id, client_id, cursor.position)


def encode_response(response: Any, *, correlation_id: int, tags: Tags = ()) -> bytes:
    """Header and body of a response, without the frame's length."""
    output = put_response_header(
        ApiKey(response.__api_key__),
        response.__version__,
        correlation_id=correlation_id,
        tags=tags,
    )
    _codec().put_entity(output, response)
    return bytes(output)


def put_response_header(
    api_key: ApiKey, api_version: int, *, correlation_id: int, tags: Tags = ()
) -> bytearray:
    """The header of a response, for a body to be appended to."""
    output = bytearray(INT32.pack(correlation_id))
    if api_key != ApiKey.API_VERSIONS and is_flexible(api_key, api_version):
        put_tags(output, tags)
    return output


def decode_response_header(frame: Bytes, api_key: ApiKey, api_version: int) -> tuple[int, int]:
    """The correlation id of a response, and where its body begins."""
    cursor = Cursor(memoryview(frame), flexible=False)
    correlation_id: int = cursor.unpack(INT32, "response header")[0]
    if api_key != ApiKey.API_VERSIONS and is_flexible(api_key, api_version):
        cursor.tags("response header")
    return correlation_id, cursor.position


def request_header_tag(frame: Bytes, tag: int) -> bytes | None:
    """A tagged field in the header of a flexible request; None if it is missing."""
    cursor = Cursor(memoryview(frame), flexible=False)
    cursor.unpack(_REQUEST_HEADER, "request header")
    cursor.nullable_string("client id")
    return cursor.tags("request header", {tag: _read_rest}).get(tag)


def response_header_tag(frame: Bytes, tag: int) -> bytes | None:
    """A tagged field in the header of a flexible response; None if it is missing."""
    cursor = Cursor(memoryview(frame), INT32.size, flexible=False)
    return cursor.tags("response header", {tag: _read_rest}).get(tag)


def _read_rest(cursor: Cursor) -> bytes:
    return bytes(cursor.take(cursor.end - cursor.position, "tagged field of a header"))


def decode_response(frame: Bytes, response_type: type[PayloadT]) -> tuple[int, PayloadT]:
    """The correlation id of a response, and the response."""
    api_key = ApiKey(response_type.__api_key__)  # type: ignore[attr-defined]
    version: int = response_type.__version__  # type: ignore[attr-defined]
    correlation_id, position = decode_response_header(frame, api_key, version)
    return correlation_id, decode_body(frame, response_type, position)


def decode_body(frame: Bytes, message_type: type[PayloadT], position: int) -> PayloadT:
    """The message that begins at `position` of the frame; bytes after it are ignored."""
    return _codec().decode(memoryview(frame), message_type, position)  # type: ignore[no-any-return]


def _find_key(number: int) -> ApiKey:
    try:
        return _KEYS[number]
    except KeyError:
        raise UnsupportedVersion(f"unknown API key {number}") from None


def _message_class(api_key: int, version: int, kind: str) -> type[Any]:
    return _find_class(_find_key(api_key).name.lower(), version, kind)


def _find_class(name: str, version: int, kind: str) -> type[Any]:
    path = f"kio.schema.{name}.v{version}.{kind}"
    try:
        module = _import(path)
    except ModuleNotFoundError as error:
        if error.name is None or not path.startswith(error.name):
            raise
        raise UnsupportedVersion(f"{name} version {version} is not supported") from None
    message: type[Any] = next(
        value
        for value in vars(module).values()
        if getattr(value, "__module__", None) == path and value.__type__.name == kind
    )
    return message


@cache
def _codec() -> ModuleType:
    with _without_hypothesis():
        from shoal.wire import codec

    return codec


def _import(path: str) -> ModuleType:
    with _without_hypothesis():
        return importlib.import_module(path)


@contextmanager
def _without_hypothesis() -> Iterator[None]:
    """Keep kio from importing hypothesis where a development environment has it.

    kio registers strategies for its types if it can, which would cost every broker 0.15 s and
    20 MB. A process that has hypothesis loaded already gets the strategies.
    """
    names = [name for name in ("hypothesis", "hypothesis.strategies") if name not in sys.modules]
    if not names or "kio.static.primitive" in sys.modules:
        yield
        return
    for name in names:
        sys.modules[name] = None  # type: ignore[assignment]  # makes the import fail
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
