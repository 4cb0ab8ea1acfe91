"""JSON for the page, from files that anybody may have written.

Rules: what JSON does not have becomes null (NaN, infinities), and what UTF-8 does not have becomes
a question mark (names of folders that are not UTF-8, lone surrogates). One bad value must not hide
all others.
"""

import json
from typing import Any

from starlette.responses import JSONResponse


def encode_json(content: Any) -> str:
    """ASCII text that every browser reads, on one line."""
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_mend(content), separators=(",", ":"))
    # Surrogates of valid pairs look the same: mending keeps those.
    return json.dumps(_mend(content), separators=(",", ":")) if "\\ud" in text else text


def _mend(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case float():
            return value if value - value == 0 else None
        case dict():
            return {_mend(key): _mend(each) for key, each in value.items()}
        case list() | tuple():
            return [_mend(each) for each in value]
        case _:
            return value


class SafeJson(JSONResponse):
    """An answer with JSON."""

    def render(self, content: Any) -> bytes:
        return encode_json(content).encode()
