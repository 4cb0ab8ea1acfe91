"""The site has every document, a menu, and only links that lead somewhere."""

import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import build_site  # type: ignore[import-not-found]  # noqa: E402

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """The links, anchors and text of a page; elements that are not closed fail."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        assert not self._open, f"{path}: not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in VOID:
            self._open.append(tag)
        if tag == "a":
            self.links.append(values["href"] or "")
        elif loaded := values.get("src") or values.get("href"):
            self.loaded.append(loaded)
        if own := values.get("id"):
            self.ids.append(own)

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    folder = tmp_path_factory.mktemp("site")
    return {path: Page(path) for path in build_site.build_site(folder)}


def test_every_document_has_a_page(pages: dict[Path, Page]) -> None:
    sections = build_site.list_sections()
    listed = {name for section in sections for name in section.documents}
    documents = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert documents | {"README.md", "ARCHITECTURE.md", "CHANGELOG.md"} <= listed
    assert len(pages) == len(listed)


def test_links_lead_somewhere(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            target, _, fragment = link.partition("#")
            if "://" in target or target.startswith("mailto:"):
                assert link in page.links, f"{path.name} loads {link} from elsewhere"
                continue
            reached = (path.parent / target).resolve() if target else path
            is_there = reached.is_file()
            if is_there and fragment:
                is_there = reached in pages and fragment in pages[reached].ids
            if not is_there:
                broken.append(f"{path.name}: {link}")
    assert not broken


def test_every_page_has_the_menu_and_its_own_text(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert len(page.links) >= len(pages), path
        assert len(page.ids) == len(set(page.ids)), path


def test_the_results_name_every_proof_and_benchmark(pages: dict[Path, Page]) -> None:
    [top] = [path.parent for path in pages if path.name == "index.html"]
    results = pages[top / build_site.RESULTS]
    for path in (ROOT / "docs" / "proofs").glob("*.md"):
        assert build_site.find_title(path.read_text(encoding="utf-8")) in results.text
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert path.stem in results.text


@pytest.mark.parametrize(
    ("heading", "slug"),
    [
        ("What it costs", "what-it-costs"),
        ("MirrorMaker 2's file", "mirrormaker-2s-file"),
        ("`shoal run`: a [link](x.md)", "shoal-run-a-link"),
    ],
)
def test_anchors_are_those_of_the_repository(heading: str, slug: str) -> None:
    assert build_site.make_slug(heading, {}) == slug
    assert build_site.make_slug(heading, {slug: 1}) == f"{slug}-1"
