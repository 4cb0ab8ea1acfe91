"""Write src/shoal/lite/api/types: the types of the requests and answers of Kafka Lite's APIs.

    python scripts/api_types.py

They come from kio's message classes and from the registration lines of the API files. kio has a
class for each version, and a handler serves many versions, so each type here has the fields of all
versions that are served. APIs with a codec of their own are left out.
"""

import re
import subprocess
import sys
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from shoal.lite.api.table import APIS
from shoal.wire.api_keys import OWN_KEYS, ApiKey
from shoal.wire.building import shape_of
from shoal.wire.messages import request_class, response_class

FOLDER = Path(__file__).resolve().parent.parent / "src" / "shoal" / "lite" / "api" / "types"
OWN_CODECS = OWN_KEYS | {ApiKey.PRODUCE, ApiKey.FETCH}
MODULES = {
    "groups": {8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47},
    "topics": {2, 3, 19, 20, 21, 23, 34, 35, 37, 43, 45, 46, 75},
    "transactions": {22, 24, 25, 26, 27, 28, 61, 65, 66},
    "cluster": {18, 29, 30, 31, 32, 33, 44, 48, 50, 55, 57, 60, 64, 74, 80, 81},
}
HEADER = '''\
"""Requests and answers for {module}: written by scripts/api_types.py.

Only the type checker uses this module. A decoded request is an instance of kio's class of its
version, and an answer is a dictionary that `ApiRequest.answer` encodes. A type has the fields of
all versions that are served; a comment names the versions of a field that not all of them have.
Times in answers are whole numbers of ms.
"""

import datetime as dt
from collections.abc import Collection
from typing import Required, TypedDict
from uuid import UUID

'''
PLAIN = {"string": "str", "bytes": "bytes", "bool": "bool", "float64": "float", "uuid": "UUID"}


@dataclass
class FieldType:
    """A field, over all versions of its structure."""

    item: "str | Structure"
    is_array: bool
    is_nullable: bool = False
    versions: list[int] = field(default_factory=list)
    has_default: bool = False


@dataclass
class Structure:
    """A message or an inner structure, over all versions that are served."""

    name: str
    is_answer: bool
    versions: list[int] = field(default_factory=list)
    fields: dict[str, FieldType] = field(default_factory=dict)

    def add(self, cls: Any, version: int, family: "Family") -> None:
        """Add the fields of one version."""
        if version in self.versions:
            return  # two fields have this structure
        self.versions.append(version)
        for each in fields(cls):
            shape = shape_of(each)
            known = self.fields.get(each.name)
            if known is None:
                item: str | Structure = (
                    family.inner(shape.item_type.__name__)
                    if shape.is_structure
                    else _plain_type(each, is_answer=self.is_answer)
                )
                known = self.fields[each.name] = FieldType(item, shape.is_array)
            known.versions.append(version)
            known.is_nullable |= shape.is_nullable
            known.has_default |= each.default is not MISSING or each.name == "throttle_time"
            if isinstance(known.item, Structure):
                known.item.add(shape.item_type, version, family)

    def render(self) -> dict[str, str]:
        """The source of the class, after that of the structures in it, by name."""
        found = {}
        for each in self.fields.values():
            if isinstance(each.item, Structure):
                found |= each.item.render()
        base = "(TypedDict, total=False)" if self.is_answer else ""
        lines = [self._render_field(name, each) for name, each in self.fields.items()]
        source = "\n".join([f"class {self.name}{base}:", *(lines or ["    pass"])])
        return found | {self.name: source}

    def _render_field(self, name: str, each: FieldType) -> str:
        text = each.item.name if isinstance(each.item, Structure) else each.item
        if each.is_array:
            text = f"Collection[{text}]" if self.is_answer else f"tuple[{text}, ...]"
        if each.is_nullable:
            text += " | None"
        is_everywhere = each.versions == self.versions
        if self.is_answer and is_everywhere and not each.has_default:
            text = f"Required[{text}]"
        return f"    {name}: {text}" + ("" if is_everywhere else f"  # {_range(each.versions)}")


@dataclass
class Family:
    """A message and its inner structures, by name."""

    message: str
    is_answer: bool
    structures: dict[str, Structure] = field(default_factory=dict)

    def inner(self, name: str) -> Structure:
        """An inner structure: kio's name, without repetitions, after that of the message."""
        if name not in self.structures:
            new = Structure(self.message + _shorten(name, self.message), self.is_answer)
            assert new.name not in {each.name for each in self.structures.values()}
            self.structures[name] = new
        return self.structures[name]


def _shorten(name: str, message: str) -> str:
    known = _words(message)
    words = _words(name.removeprefix("".join(known[:-1])))
    if len(words) > 1 and words[-1] in {"Request", "Response", "Result"}:
        del words[-1]
    while len(words) > 1 and words[0] in known:
        del words[0]
    return "".join(words)


def _words(name: str) -> list[str]:
    return re.findall(r"[A-Z][a-z0-9]*", name)


def _plain_type(each: "Field[Any]", *, is_answer: bool) -> str:
    kafka_type = str(each.metadata["kafka_type"])
    if kafka_type.startswith(("timedelta", "datetime")):
        return "int" if is_answer else f"dt.{kafka_type.partition('_')[0]}"
    return PLAIN.get(kafka_type, "int")


def _range(versions: list[int]) -> str:
    first, last = versions[0], versions[-1]
    if versions != list(range(first, last + 1)):
        raise ValueError(f"versions with a gap: {versions}")
    return f"version {first}" if first == last else f"versions {first} to {last}"


def render(module: str) -> str:
    """The source of a module."""
    found: dict[str, str] = {}
    for key in sorted(MODULES[module]):
        versions = range(APIS[key].least, APIS[key].most + 1)
        for find_class in (request_class, response_class):
            name = find_class(key, versions[-1]).__name__
            message = Structure(name, is_answer=find_class is response_class)
            family = Family(name, message.is_answer)
            for version in versions:
                message.add(find_class(key, version), version, family)
            found |= message.render()
    return _format(HEADER.format(module=module) + "\n\n\n".join(found.values()) + "\n")


def _format(text: str) -> str:
    """Remove the imports that a module does not need, and format it."""
    ruff = [sys.executable, "-m", "ruff"]
    for arguments in (["check", "--fix", "--quiet", "--select", "F401"], ["format", "--quiet"]):
        command = [*ruff, *arguments, "--stdin-filename", "types.py", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    return text


def main() -> None:
    assert set().union(*MODULES.values()) == set(APIS) - OWN_CODECS
    for module in MODULES:
        (FOLDER / f"{module}.py").write_text(render(module))


if __name__ == "__main__":
    main()
