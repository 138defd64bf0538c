"""Checks of a site's HTML."""

import ast
import json
import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from .page import Site

CHINESE = "zh_TW/"


def broken_links(site: Site) -> Iterator[str]:
    """Every link inside of the site leads to a file, and to a place in it that is there."""
    for name, page in site:
        for link in page.links:
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            target, anchor = site.target(page, unquote(link)), unquote(urlsplit(link).fragment)
            if not target.is_file():
                yield f"{name}: {link} leads nowhere"
            elif anchor and target.suffix == ".html" and anchor not in site.files[target].anchors:
                yield f"{name}: {link}: the page has no such place"


def pictures_without_words(site: Site) -> Iterator[str]:
    """Whoever does not see a picture is told what it shows; the name of a file tells nothing."""
    for name, page in site:
        for picture, words in page.alts:
            if not words.strip() or re.search(r"\.(png|svg|jpe?g|gif)$", words):
                yield f"{name}: {picture} has {words!r} for a text"


def formulas_that_failed(site: Site) -> Iterator[str]:
    """MathML marks what it could not read."""
    for name, page in site:
        if page.formula_errors:
            yield f"{name}: {page.formula_errors} formulas could not be read"


def titles(site: Site) -> Iterator[str]:
    """One title a page. (That of the search is written by its script.)"""
    for name, page in site:
        if page.headings != 1 and name != "search.html":
            yield f"{name}: has {page.headings} headings of the first level"


def languages(site: Site) -> Iterator[str]:
    """Each page says its language, and the two versions of a page lead to each other."""
    for name, page in site:
        ours, theirs, other = ("zh-Hant-TW", "en", "") if name.startswith(CHINESE) else ("en", "zh-Hant-TW", CHINESE)
        if page.language != ours:
            yield f"{name}: says that its language is {page.language!r}, not {ours!r}"
        twin = other + name.removeprefix(CHINESE)
        link = page.twins.get(theirs, "")
        if twin in site.pages and (not link or site.target(page, link) != site.pages[twin].path.resolve()):
            yield f"{name}: has no link to {twin}"
        if name.startswith(CHINESE) and twin not in site.pages:
            yield f"{name}: there is no {twin}"


def notebooks(site: Site) -> Iterator[str]:
    """A page with code that ran can be downloaded as a notebook with the same code."""
    for name, page in site:
        if not page.cells:
            continue
        wanted = name.rpartition("/")[2].replace(".html", ".ipynb")
        offered = [link for link in page.notebooks if link.rpartition("/")[2] == wanted]
        if not offered:
            yield f"{name}: runs code, and offers no {wanted}"
            continue
        try:
            cells = json.loads(site.target(page, offered[0]).read_text(encoding="utf-8"))["cells"]
        except (OSError, ValueError, KeyError) as error:
            yield f"{name}: {wanted} is no notebook: {error!r}"
            continue
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code" and _shown(cell)]
        if [c.strip() for c in code] != [c.strip() for c in page.cells]:
            yield f"{name}: {wanted} has other code than the page"


def translated_code(site: Site) -> Iterator[str]:
    """A translation runs the code of the page that it translates; comments may be in its own language."""
    for name, page in site:
        original = site.pages.get(name.removeprefix(CHINESE))
        if not name.startswith(CHINESE) or original is None:
            continue
        theirs, ours = ([ast.dump(ast.parse(cell)) for cell in p.cells] for p in (original, page))
        if len(theirs) != len(ours):
            yield f"{name}: has {len(ours)} cells of code, and the original {len(theirs)}"
        for number, (here, there) in enumerate(zip(ours, theirs, strict=False), 1):
            if here != there:
                yield f"{name}: its {number}. cell of code is not that of the original"


ALL = (broken_links, pictures_without_words, formulas_that_failed, titles, languages, notebooks, translated_code)


def _shown(cell: dict[str, object]) -> bool:
    tags = cell.get("metadata", {}).get("tags", [])  # type: ignore[attr-defined]
    return not {"remove-cell", "remove-input"} & set(tags)
