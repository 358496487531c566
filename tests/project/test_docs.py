"""The documentation as a site: links lead somewhere, tables are tables, and reading it asks nobody for anything."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
# What a browser fetches by itself; a link has to be clicked.
FETCHED = {
    "script": "src",
    "img": "src",
    "source": "src",
    "iframe": "src",
    "video": "src",
    "audio": "src",
    "link": "href",
}


class Page(HTMLParser):
    """What a page fetches, links to and can be linked to, and its text outside of code."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.fetches: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.text = ""
        self._code = 0
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self._code += tag in ("pre", "code", "script", "style")
        if found := given.get(FETCHED.get(tag, "")):
            self.fetches.append(found)
        self.fetches += [part.split()[0] for part in (given.get("srcset") or "").split(",") if part.strip()]
        self.fetches += addresses(given.get("style") or "")
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in ("pre", "code", "script", "style")

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.text += data


def addresses(style: str) -> list[str]:
    """What a style sheet fetches.

    >>> addresses("@import 'a.css'; b { background: url(c.png) }")
    ['a.css', 'c.png']
    """
    return [first or second for first, second in re.findall(r"@import\s+['\"]([^'\"]+)|url\(['\"]?([^'\")]+)", style)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: what is only a warning to MkDocs is an error here.

    subtle: with --quiet no warning is counted, and --strict lets everything pass.
    """
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    found = {path: Page(path) for path in site.rglob("*.html")}
    assert len(found) > len(list((ROOT / "docs").rglob("*.md")))  # 404.html, too
    return found


def inside(site: Path, page: Path, address: str) -> Iterator[tuple[Path, str]]:
    """File and anchor of an address, unless it is of another site."""
    parts = urlsplit(address)
    if not parts.scheme and not parts.netloc:
        start = site if parts.path.startswith("/") else page.parent  # 404.html is served at any depth
        path = (start / unquote(parts.path).lstrip("/")) if parts.path else page
        yield (path / "index.html" if path.is_dir() else path).resolve(), unquote(parts.fragment)


def test_links_anchors_and_pictures_lead_somewhere(site, pages):
    known = {path.resolve(): page.anchors for path, page in pages.items()}
    for path, page in pages.items():
        for address in page.links + page.fetches:
            for file, anchor in inside(site, path, address):
                assert file.exists(), f"{path.relative_to(site)}: {address}"
                assert not anchor or anchor in known[file], f"{path.relative_to(site)}: {address}"


def test_nothing_is_fetched_from_elsewhere(site, pages):
    fetched = [(path, address) for path, page in pages.items() for address in page.fetches]
    fetched += [(path, address) for path in site.rglob("*.css") for address in addresses(path.read_text())]
    assert fetched
    for path, address in fetched:
        parts = urlsplit(address)
        assert parts.scheme in ("", "data"), f"{path.relative_to(site)}: {address}"
        assert not parts.netloc, f"{path.relative_to(site)}: {address}"


def test_what_the_theme_would_fetch_by_script_is_not_there(pages):
    """Its script asks others for diagrams and for the stars of a repository, where a page has them."""
    for path, page in pages.items():
        text = path.read_text()
        assert 'class="mermaid"' not in text
        assert 'data-md-component="source"' not in text
        assert page.text  # it was read


def test_tables_and_lists_are_drawn(site, pages):
    """A repository's viewer takes what MkDocs leaves as text: a table or list without an empty line before it."""
    for path, page in pages.items():
        left = re.search(r"^\s*(\|.*\|.*\||[-*] \S.*|```.*)$", page.text, re.MULTILINE)
        assert left is None, f"{path.relative_to(site)}: {left[0]}"


def test_every_page_can_be_searched_for(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].split("#")[0] for entry in index["docs"]}
    folder = ROOT / "docs"
    assert found >= {str(page.relative_to(folder).with_suffix(".html")) for page in folder.rglob("*.md")}


def test_source_files_that_the_documents_name_exist():
    """`search/certified.py` means src/superbloom/search/certified.py, unless it is a path from the root."""
    named = {
        (page.relative_to(ROOT).as_posix(), file)
        for page in [ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
        for file in re.findall(r"`([\w/]+/\w+\.py)`|\((\w+/\w+\.py)", page.read_text(encoding="utf-8"))
        for file in file
        if file
    }
    places = (ROOT, ROOT / "src", ROOT / "src" / "superbloom", ROOT / "tests")
    missing = sorted((page, file) for page, file in named if not any((place / file).is_file() for place in places))
    assert named
    assert missing == []
