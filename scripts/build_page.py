"""Joins the page of `shoal serve` into src/shoal/web/static/.

    python scripts/build_page.py            join our modules with the libraries of the last build
    python scripts/build_page.py --fetch    fetch the libraries with npm first
    python scripts/build_page.py --check    exit 1 if static/ is not what a build writes

Users have no Node, so what this writes is committed. Browsers refuse modules that import each other
from a file, and one request is quicker than twenty: all modules become one.

Rules: vendor.json pins each library: its version, the integrity of its npm package, and the SHA-512
of each file that is used. A library is wrapped in a function, so that its short names stay its own.
Our modules import and export only names at the top level; the joined module has all of them in one
scope, so a name may be defined once only.
"""

import argparse
import base64
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "src" / "shoal" / "web" / "page"
STATIC = ROOT / "src" / "shoal" / "web" / "static"
VENDOR = PAGE / "vendor"
ENTRY = "app.js"
COPIED = ("index.html", "icon.svg", "stories.json")
LIBRARIES = "vendor.js"  # what our modules call the libraries
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
DEFINED = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)
EXPORTS = re.compile(r"export\{([^}]*)\};?\s*$")


class BuildError(Exception):
    """The page cannot be built; the text says why."""


def sha512(data: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()


def read_manifest() -> dict[str, dict]:
    return json.loads((PAGE / "vendor.json").read_text(encoding="utf-8"))


def library_file(folder: Path, name: str, file: str) -> Path:
    return folder / name / Path(file).name


def fetch_libraries(target: Path) -> None:
    """Fetch the pinned packages with npm, check them, and keep the files that are used."""
    for name, library in read_manifest().items():
        with tempfile.TemporaryDirectory() as folder:
            command = ["npm", "pack", f"{name}@{library['version']}", "--silent"]
            packed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
            package = Path(folder) / packed.stdout.split()[-1]
            if sha512(package.read_bytes()) != library["integrity"]:
                raise BuildError(f"the npm package {name} is not the pinned one")
            with tarfile.open(package) as archive:
                for file in library["files"]:
                    member = archive.extractfile(f"package/{file}")
                    assert member is not None
                    path = library_file(target, name, file)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(member.read())


def read_library(name: str, file: str) -> str:
    """A file of a library, if it is the pinned one."""
    data = library_file(VENDOR, name, file).read_bytes()
    if sha512(data) != read_manifest()[name]["files"][file]:
        raise BuildError(f"{name}/{file} is not the pinned file; run with --fetch")
    return data.decode()


def wrap_htm() -> str:
    """preact and htm as constants: h, html, render, useState and others."""
    source = read_library("htm", "preact/standalone.module.js").rstrip()
    found = EXPORTS.search(source)
    if not found:
        raise BuildError("preact/standalone.module.js exports nothing at its end")
    pairs = [pair.split(" as ") for pair in found[1].split(",")]
    names = ", ".join(public for _, public in pairs)
    values = ", ".join(f"{public}: {private}" for private, public in pairs)
    body = source[: found.start()]
    return f"const {{ {names} }} = (() => {{\n{body}\nreturn {{ {values} }};\n}})();\n"


def join_modules() -> str:
    """All modules in one, each after those that it imports."""
    ordered: list[str] = []
    visit(ENTRY, ordered, ())
    parts = [f"// preact and htm\n{wrap_htm()}"]
    parts.append(f"// uPlot\n{read_library('uplot', 'dist/uPlot.iife.min.js').rstrip()}\n")
    defined: dict[str, str] = {}
    for file in ordered:
        source = (PAGE / file).read_text(encoding="utf-8")
        for name in DEFINED.findall(source):
            if name in defined:
                raise BuildError(f"{name} is defined in {defined[name]} and in {file}")
            defined[name] = file
        joined = re.sub(r"^export ", "", IMPORT.sub("", source), flags=re.MULTILINE)
        if re.search(r"^(import|export)\b", joined, re.MULTILINE):
            raise BuildError(f"{file} has an import or export that this script does not know")
        parts.append(f"// {file}\n{joined}")
    return "\n".join(parts)


def visit(file: str, ordered: list[str], above: tuple[str, ...]) -> None:
    if file in above:
        raise BuildError(f"modules import each other: {' → '.join((*above, file))}")
    if file in ordered or file == LIBRARIES:
        return
    for _, imported in IMPORT.findall((PAGE / file).read_text(encoding="utf-8")):
        visit(imported, ordered, (*above, file))
    ordered.append(file)


def build() -> dict[str, bytes]:
    """Every file of static/ but the libraries, by name."""
    style = (PAGE / "style.css").read_text(encoding="utf-8")
    uplot_style = read_library("uplot", "dist/uPlot.min.css")
    files = {
        "app.js": join_modules().encode(),
        "style.css": f"{uplot_style}\n{style}".encode(),
        "licences.txt": write_licences().encode(),
    }
    return files | {name: (PAGE / name).read_bytes() for name in COPIED}


def write_licences() -> str:
    parts = []
    for name, library in read_manifest().items():
        head = f"{name} {library['version']}: {library['licence']}"
        texts = [read_library(name, file) for file in library["files"] if "LICENSE" in file]
        parts.append("\n\n".join([head, "=" * len(head), *texts]))
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fetch", action="store_true")
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    try:
        if chosen.fetch:
            fetch_libraries(VENDOR)
        files = build()
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    old = {name: (STATIC / name).read_bytes() for name in files if (STATIC / name).exists()}
    if chosen.check:
        stale = [name for name in files if old.get(name) != files[name]]
        print(f"stale: {', '.join(stale)}" if stale else "static/ is current")
        return 1 if stale else 0
    STATIC.mkdir(exist_ok=True)
    for name, content in files.items():
        (STATIC / name).write_bytes(content)
    print(f"{len(files['app.js']):,} bytes of app.js")
    return 0


if __name__ == "__main__":
    sys.exit(main())
