"""Joins a report: one HTML file with the page's module, its style sheet and its data.

Rules:
- The file needs nothing from outside. Its content security policy allows the one module and the
  one style sheet by their hashes, and no connection at all.
- The data is JSON in a block that browsers do not run. `<` is escaped, so no text can end it.
- Browsers refuse modules that are imported from files: that is why the module is inside.
- The licences of the libraries travel with their code.
"""

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, Final

from shoal.model.errors import SystemFailure

MOST_BYTES: Final = 2_000_000
_STATIC_NAMES: Final = ("app.js", "style.css", "licences.txt")


def render_document(title: str, lead: str, content: dict[str, Any]) -> str:
    """Return the file; `lead` is what a reader without JavaScript gets."""
    script, style = _static_text("app.js"), _static_text("style.css")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{_text(title)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<div id="app"><main><h1>{_text(title)}</h1><p>{_text(lead)}</p></main></div>
<noscript><p>The numbers and charts of this report need JavaScript; the file needs nothing else.</p>
</noscript>
<footer class="no-print"><details><summary>Licences of the libraries in this file</summary>
<pre>{escape(_static_text("licences.txt"))}</pre></details></footer>
<script type="application/json" id="report">{encode_data(content)}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def encode_data(content: dict[str, Any]) -> str:
    """Return the data as JSON that cannot end its block, for any texts in it."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    # Half of a surrogate pair has no bytes in UTF-8, but an escape in JSON.
    return safe.encode(errors="backslashreplace").decode()


def size_of(content: dict[str, Any]) -> int:
    """Return the bytes that a report with this data has, but for its title and lead."""
    fixed = sum(len(_static_text(name).encode()) for name in _STATIC_NAMES)
    return fixed + len(encode_data(content).encode())


@cache
def _static_text(name: str) -> str:
    """Return a file of the joined page as it may stand inside an element."""
    text = files("shoal").joinpath("web", "static", name).read_text(encoding="utf-8")
    if any(end in text.lower() for end in ("</script", "</style", "<!--")):
        raise SystemFailure(f"web/static/{name} cannot be put into a report: it ends its element")
    return text


def _text(value: str) -> str:
    return escape(value.encode(errors="replace").decode())


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
