"""Values as YAML text, for manifests and compose files; the base package has no YAML library.

Written are mappings, lists, strings, numbers and booleans, in block style. A string that YAML could
read as something else is quoted as JSON, which YAML includes.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@-]*")
_OTHER_MEANING = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def to_yaml(*documents: Mapping[str, Any], comment: str = "") -> str:
    """One file with these documents, after a comment."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + "---\n".join(
        "".join(f"{line}\n" for line in _mapping_lines(document)) for document in documents
    )


def _mapping_lines(mapping: Mapping[str, Any]) -> Iterator[str]:
    for key, value in mapping.items():
        name = _scalar(key)
        if isinstance(value, Mapping) and value:
            yield f"{name}:"
            yield from (f"  {line}" for line in _mapping_lines(value))
        elif _is_list(value) and value:
            yield f"{name}:"
            yield from (f"  {line}" for line in _list_lines(value))
        elif isinstance(value, str) and "\n" in value:
            yield f"{name}: |"
            yield from (f"  {line}".rstrip() for line in value.rstrip("\n").split("\n"))
        else:
            yield f"{name}: {_scalar(value)}"


def _list_lines(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Mapping) and value:
            first, *rest = _mapping_lines(value)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
        else:
            yield f"- {_scalar(value)}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _OTHER_MEANING:
        return value
    return json.dumps(value, ensure_ascii=False)
