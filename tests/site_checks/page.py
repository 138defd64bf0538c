"""A page of HTML, and what the checks ask of it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path


@dataclass
class Page(HTMLParser):
    """A page that was read from its file."""

    path: Path
    language: str = ""
    headings: int = 0  # of the first level
    formula_errors: int = 0
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)  # what the page refers to: pages, pictures, scripts, styles
    alts: list[tuple[str, str]] = field(default_factory=list)  # of pictures: the file, and what it is said to show
    notebooks: list[str] = field(default_factory=list)
    twins: dict[str, str] = field(default_factory=dict)  # by language
    cells: list[str] = field(default_factory=list)  # the code that has run

    def __post_init__(self) -> None:
        super().__init__()
        self._depth = 0  # of <div> in a cell's input
        self._code = False
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        link = given.get("src" if tag in ("img", "script") else "href", "")
        if link:
            self.links.append(link)
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.headings += tag == "h1"
        self.formula_errors += tag == "merror"
        if tag == "html":
            self.language = given.get("lang", "")
        elif tag == "img":
            self.alts.append((given.get("src", ""), given.get("alt", "")))
        elif tag == "a" and link.endswith(".ipynb"):
            self.notebooks.append(link)
        elif tag == "a" and "hreflang" in given:
            self.twins[given["hreflang"]] = link
        elif tag == "div" and (self._depth or "cell_input" in given.get("class", "").split()):
            self._depth += 1
        elif tag == "pre" and self._depth:
            self._code = True
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "div" and self._depth:
            self._depth -= 1
        elif tag == "pre":
            self._code = False

    def handle_data(self, data: str) -> None:
        if self._code:
            self.cells[-1] += data


@dataclass(frozen=True)
class Site:
    """A folder of pages."""

    root: Path

    @cached_property
    def pages(self) -> dict[str, Page]:
        """By their path in the folder."""
        return {path.relative_to(self.root).as_posix(): Page(path) for path in sorted(self.root.rglob("*.html"))}

    @cached_property
    def files(self) -> dict[Path, Page]:
        """The same, by their own path."""
        return {page.path.resolve(): page for page in self.pages.values()}

    def __iter__(self) -> Iterator[tuple[str, Page]]:
        return iter(self.pages.items())

    def target(self, page: Page, link: str) -> Path:
        """The file that a link on a page leads to."""
        path = link.partition("#")[0].partition("?")[0]
        return (page.path.parent / path).resolve() if path else page.path
