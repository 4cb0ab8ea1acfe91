"""A JVM with Kafka's own classes, for tests that ask them what they make of our bytes.

A pytest plugin: `java_gateway` is the JVM (by Py4J), `java_records` our questions about
records, answered by `RecordOracle.java`. Tests that take one carry the marker `apache`,
since they need Kafka's jars. Neither a broker nor a Java compiler is needed.
"""

import importlib.util
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from shoal.runtime.java import find_java
from shoal.systems.apache.jars import fetch_jars
from shoal.wire.records.records import Record
from support.apache.clusters import SHORT_LIVED_JVM

JVM_FIXTURES = {"java_gateway", "java_records"}
SOURCE = Path(__file__).with_name("RecordOracle.java")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if JVM_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("apache")
            item.add_marker(pytest.mark.xdist_group("apache"))


@pytest.fixture(scope="session")
def java_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaGateway]:
    """A JVM with Kafka's jars and the compiler that comes with Spark."""
    package = importlib.util.find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    spark_jars = Path(package.origin).parent / "jars"
    wanted = [spark_jars.glob(f"{name}-*.jar") for name in ("py4j", "janino", "commons-compiler")]
    class_path = [*(jar for found in wanted for jar in found), *sorted(fetch_jars().glob("*.jar"))]
    scratch = tmp_path_factory.mktemp("java")
    port, process = launch_gateway(
        classpath=os.pathsep.join(map(str, class_path)),
        javaopts=[*SHORT_LIVED_JVM.split(), "-XX:-UsePerfData", f"-Djava.io.tmpdir={scratch}"],
        java_path=str(find_java().executable),
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    yield gateway
    gateway.shutdown()
    process.stdin.close()
    process.wait(100)


class JavaRecords:
    """Kafka's Java classes as encoder and decoder of record batches."""

    def __init__(self, gateway: JavaGateway) -> None:
        compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setTargetVersion(8)
        compiler.cook(SOURCE.read_text(encoding="utf-8"))
        oracle = compiler.getClassLoader().loadClass("RecordOracle")
        self._methods = {method.getName(): method for method in oracle.getMethods()}
        self._gateway = gateway

    def encode(
        self,
        records: Sequence[Record],
        *,
        codec: int,
        base_offset: int = 0,
        producer: tuple[int, int, int] = (-1, -1, -1),
        is_transactional: bool = False,
    ) -> bytes:
        """One batch; `producer` is its id, epoch and base sequence."""
        packed = _pack(records)
        return bytes(self._call("encode", packed, codec, base_offset, *producer, is_transactional))

    def decode(self, batches: bytes | bytearray) -> list[Record]:
        """The records of all batches, after Kafka's checks of length and CRC."""
        return _unpack(bytes(self._call("decode", bytes(batches))))

    def describe(self, batches: bytes | bytearray) -> dict[str, str]:
        """The header fields of the first batch, by our names."""
        said = str(self._call("describe", bytes(batches)))
        return dict(field.split("=", 1) for field in said.split())

    def encode_marker(self, *, commit: bool, **fields: int) -> bytes:
        names = ("offset", "timestamp", "producer_id", "producer_epoch", "coordinator_epoch")
        return bytes(self._call("encodeMarker", commit, *(fields[name] for name in names)))

    def decode_marker(self, batches: bytes | bytearray) -> str:
        """Type and coordinator epoch, as in `COMMIT 7`."""
        return str(self._call("decodeMarker", bytes(batches)))

    def _call(self, name: str, *arguments: Any) -> Any:
        method = self._methods[name]
        types = [kind.getName() for kind in method.getParameterTypes()]
        values = self._gateway.new_array(self._gateway.jvm.Object, len(arguments))
        for index, (kind, argument) in enumerate(zip(types, arguments, strict=True)):
            # Reflection takes boxes of exactly the right type; Py4J would send small longs as ints.
            is_long = kind == "long"
            values[index] = self._gateway.jvm.Long.valueOf(str(argument)) if is_long else argument
        return method.invoke(None, values)


@pytest.fixture(scope="session")
def java_records(java_gateway: JavaGateway) -> JavaRecords:
    return JavaRecords(java_gateway)


def _pack(records: Sequence[Record]) -> bytes:
    parts = [struct.pack(">i", len(records))]
    for record in records:
        parts.append(struct.pack(">qq", record.offset, record.timestamp))
        parts += [_pack_bytes(record.key), _pack_bytes(record.value)]
        parts.append(struct.pack(">i", len(record.headers)))
        for name, value in record.headers:
            parts += [_pack_bytes(name.encode()), _pack_bytes(value)]
    return b"".join(parts)


def _pack_bytes(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def _unpack(packed: bytes) -> list[Record]:
    position = 0

    def number(kind: str) -> int:
        nonlocal position
        (value,) = struct.unpack_from(kind, packed, position)
        position += struct.calcsize(kind)
        return int(value)

    def string() -> bytes | None:
        nonlocal position
        length = number(">i")
        if length < 0:
            return None
        position += length
        return packed[position - length : position]

    records = []
    for _ in range(number(">i")):
        offset, timestamp = number(">q"), number(">q")
        key, value = string(), string()
        headers = tuple(((string() or b"").decode(), string()) for _ in range(number(">i")))
        records.append(Record(offset, timestamp, key, value, headers))
    assert position == len(packed)
    return records
