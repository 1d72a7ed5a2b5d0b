"""What a reader clicks on leads somewhere, and the site has every page: checked on the sources."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def prose(text: str) -> str:
    """A page without code, comments and what only looks like a link in them."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"^(`{3,})(?!\{).*?^\1", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[\[\]()<>]", "", code[0]), text)


def targets(text: str) -> list[str]:
    """Where the links and pictures of a page lead, but for other sites."""
    text = prose(text)
    found = re.findall(r"\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)", text)
    found += re.findall(r"\b(?:href|src)=\"([^\"]+)\"", text)
    found += re.findall(r"^\[[^\]]+\]:\s+(\S+)", text, re.M)
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them and the site too."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+?)\s*$", prose(text), re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = [name for n in range(1, 100) if (name := f"{slug}-{n}") not in found]
        found.add(again[0] if slug in found else slug)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for target in targets(page.read_text()):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.is_file(), f"{target}: there is no such file"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file.read_text()), f"{target}: no such heading"


def test_links_are_found():
    text = (
        "# A & B\n[a](b.md#c 'd') ![e](f.png)\n```sh\n[g](h)\n```\n`[i](j)` <img src=\"k.gif\">\n"
    )
    assert targets(text.replace("'d'", '"d"')) == ["b.md#c", "f.png", "k.gif"]
    assert anchors("# A & B: `c_d`\n## E\n```\n# F\n```\n## E\n") == {"a--b-c_d", "e", "e-1"}
    assert sum(len(targets(page.read_text())) for page in PAGES) > 100


def listed_by(page: str) -> set[str]:
    """The pages in the toctrees of a page, by their paths under docs/ without the suffix."""
    every = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
    found: set[str] = set()
    trees = re.findall(
        r"^```\{toctree\}\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.M | re.S
    )
    for entry in "".join(trees).split("\n"):
        if entry and not entry.startswith(":"):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), entry))
            assert path in every, f"{page}: no page {entry}"
            found.add(path)
    return found


def test_every_page_is_in_the_table_of_contents():
    reached, left = set(), ["index"]
    while left:
        page = left.pop()
        reached.add(page)
        left += listed_by(page) - reached
    assert len(reached) > 20
    assert reached == {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
