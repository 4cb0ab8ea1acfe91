"""Turn the documents of the project into a site: HTML pages with a menu, and a page of results.

    python scripts/build_site.py --out site

Every Markdown file that the menu lists becomes a page; links between documents become links
between pages, and files that documents link to are copied. The page of results is made from the
stored proofs and benchmark results. Pages need no network and no script.
"""

import argparse
import html
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parent.parent
RESULTS = "results.html"
_STYLE = """\
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --link: #0b62a8; }
@media (prefers-color-scheme: dark) { :root { --link: #7cc0ff; } }
body { margin: 0; font: 16px/1.55 system-ui, sans-serif; display: flex; flex-wrap: wrap; }
nav { flex: 1 0 14rem; max-width: 18rem; padding: 1rem; border-right: 1px solid var(--line); }
nav h2 { font-size: .8rem; text-transform: uppercase; margin: 1rem 0 .2rem; }
nav ul { list-style: none; margin: 0; padding: 0; font-size: .92rem; }
nav a[aria-current] { font-weight: bold; }
main { flex: 4 1 30rem; min-width: 0; max-width: 60rem; padding: 1rem 2rem 4rem; }
a { color: var(--link); }
pre, code { font-family: ui-monospace, monospace; font-size: .9em; background: var(--soft); }
pre { padding: .8rem; overflow-x: auto; }
pre code { background: none; }
img { max-width: 100%; background: #fff; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; }
th, td { text-align: left; vertical-align: top; }
"""
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="{up}style.css">
</head>
<body>
<nav aria-label="Pages">{menu}</nav>
<main>{body}</main>
</body>
</html>
"""
_RESULTS = """\
# Results of proofs and benchmarks

What was proven and measured, with the date of the last run. Every page has the command that repeats
it and the conditions under which it ran.

## Proofs

| proof | what was shown | last run |
|---|---|---|
{proofs}

## Benchmarks

Claims about speed and cost, each by one command `make bench-NAME`; the numbers are in
[Performance](docs/reference/performance.md).

| benchmark | claim | holds | measured | load at the end |
|---|---|---|---|---|
{benchmarks}
"""


class Section(NamedTuple):
    """A part of the menu."""

    title: str
    documents: list[str]


def list_sections(root: Path = ROOT) -> list[Section]:
    """The menu: the first steps by hand, the rest as it is found."""
    first = ["README.md", "docs/guides/ten-minutes.md", "docs/how-it-works.md"]

    def found(folder: str) -> list[str]:
        paths = sorted((root / folder).glob("*.md"))
        names = [path.relative_to(root).as_posix() for path in paths]
        return [name for name in names if name not in first]

    return [
        Section("Start", first),
        Section("Guides", found("docs/guides")),
        Section("Reference", found("docs/reference")),
        Section("Results", [RESULTS, *found("docs/proofs"), "benchmarks/README.md"]),
        Section("Decisions", found("docs/decisions")),
        Section(
            "Project", ["docs/README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
        ),
    ]


def build_site(out: Path, root: Path = ROOT) -> list[Path]:
    """Write all pages; returns their paths."""
    sections = list_sections(root)
    texts = {
        name: make_results(root) if name == RESULTS else (root / name).read_text(encoding="utf-8")
        for section in sections
        for name in section.documents
    }
    pages = {name: page_of(name) for name in texts}
    titles = {name: find_title(text) for name, text in texts.items()}
    out.mkdir(parents=True, exist_ok=True)
    (out / "style.css").write_text(_STYLE, encoding="utf-8")
    written = []
    for name, text in texts.items():
        tokens, copied = _parse(text, name, pages, root)
        for source in copied:
            target = out / source
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / source, target)
        page = out / pages[name]
        page.parent.mkdir(parents=True, exist_ok=True)
        body = _renderer().renderer.render(tokens, _renderer().options, {})
        body = body.replace("<table>", '<div class="table"><table>')
        body = body.replace("</table>", "</table></div>")
        page.write_text(
            _PAGE.format(
                title=html.escape(titles[name]),
                up="../" * pages[name].count("/"),
                menu=_menu(sections, name, pages, titles),
                body=body,
            ),
            encoding="utf-8",
        )
        written.append(page)
    return written


def page_of(name: str) -> str:
    """The page of a document, below the site's folder."""
    if name == RESULTS:
        return name
    return "index.html" if name == "README.md" else str(Path(name).with_suffix(".html"))


def find_title(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1].replace("`", "") if found else "Shoal"


def _renderer() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _parse(
    text: str, name: str, pages: dict[str, str], root: Path
) -> tuple[list[Token], list[str]]:
    """The tokens of a document with links for the site, and the files to copy."""
    text = re.sub(r"^<!--.*?-->\n", "", text, flags=re.MULTILINE | re.DOTALL)
    tokens = _renderer().parse(text)
    copied: list[str] = []
    slugs: dict[str, int] = {}
    for position, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", make_slug(tokens[position + 1].content, slugs))
        for child in token.children or ():
            for attribute in ("href", "src"):
                link = child.attrGet(attribute)
                if isinstance(link, str):
                    child.attrSet(attribute, _translate(link, name, pages, root, copied=copied))
    return tokens, copied


def make_slug(heading: str, slugs: dict[str, int]) -> str:
    """The anchor of a heading, as in the rendering of the repository."""
    plain = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower())
    slug = plain.strip().replace(" ", "-")
    count = slugs.get(slug, 0)
    slugs[slug] = count + 1
    return slug if count == 0 else f"{slug}-{count}"


def _translate(
    link: str, name: str, pages: dict[str, str], root: Path, *, copied: list[str]
) -> str:
    target, hash_sign, fragment = link.partition("#")
    if not target or re.match(r"[a-z]+:", target):
        return link
    own = root / name if name != RESULTS else root / "README.md"
    path = Path(os.path.normpath(own.parent / target)).relative_to(root).as_posix()
    if path in pages:
        reached = pages[path]
    elif (root / path).is_file():
        copied.append(path)
        reached = path
    else:
        reached = pages.get(f"{path}/README.md", "docs/README.html")
    relative = os.path.relpath(reached, Path(pages[name]).parent)
    return f"{relative}{hash_sign}{fragment}"


def _menu(
    sections: list[Section], current: str, pages: dict[str, str], titles: dict[str, str]
) -> str:
    parts = []
    for section in sections:
        parts.append(f"<h2>{html.escape(section.title)}</h2><ul>")
        for name in section.documents:
            href = os.path.relpath(pages[name], Path(pages[current]).parent)
            mark = ' aria-current="page"' if name == current else ""
            parts.append(f'<li><a href="{href}"{mark}>{html.escape(titles[name])}</a></li>')
        parts.append("</ul>")
    return "".join(parts)


# The page of results


def make_results(root: Path = ROOT) -> str:
    """A document of what was proven and measured, from the stored files."""
    proofs, benchmarks = list(_proof_rows(root)), list(_benchmark_rows(root))
    return _RESULTS.format(proofs="\n".join(proofs), benchmarks="\n".join(benchmarks))


def _proof_rows(root: Path) -> Iterator[str]:
    for path in sorted((root / "docs" / "proofs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        paragraphs = [p.replace("\n", " ") for p in text.split("\n\n")[1:]]
        shown = next((p for p in paragraphs if p and p[0] not in "|#-<"), "").replace("|", "/")
        dates = re.findall(r"\b20\d\d-\d\d-\d\d\b", text)
        name = f"docs/proofs/{path.name}"
        yield f"| [{find_title(text)}]({name}) | {shown} | {max(dates, default='')} |"


def _benchmark_rows(root: Path) -> Iterator[str]:
    for path in sorted((root / "benchmarks" / "results").glob("*.json")):
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        loads = ", ".join(f"{load:.1f}" for load in result["machine"]["load_average"])
        holds = "yes" if result["holds"] else "no"
        claim = str(result["claim"]).replace("|", "/")
        file = f"[{path.stem}](benchmarks/results/{path.name})"
        yield f"| {file} | {claim} | {holds} | {result['measured'][:10]} | {loads} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    pages = build_site(parser.parse_args().out)
    print(f"{len(pages)} pages; open {pages[0]}")


if __name__ == "__main__":
    main()
