"""Links that lead on both in the repository and on the site; and those between a page and its translation.

Pages link to the repository's files as these lie there, ``../README.md`` or ``../tinynorm/formulas/norms.py``, which is
what a reader of the repository follows. A site knows no address of the repository, so there a link leads

- to the page that includes the document,
- to a module's place in the API reference, whose [source] links show the code,
- to a copy of any other file;

and a folder, of which there is nothing to show, stays without a link.
"""

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = {"README.md": "readme", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}
"""The repository's documents, and the pages that include them."""
LANGUAGES = {"": ("en", "English"), "zh_TW/": ("zh-Hant-TW", "繁體中文")}
"""Folders of pages, what browsers call their language, and what readers call it."""


class RepositoryLinks(SphinxTransform):
    """Lead each link that MyST could not settle to what stands for its file on the site."""

    default_priority = 100

    def apply(self) -> None:
        """What leads nowhere is left to MyST, which warns of it."""
        for node in list(self.document.findall(lambda n: isinstance(n, pending_xref | download_reference))):
            if node.get("reftype") != "myst" or node["reftarget"] in self.env.found_docs:
                continue
            path, _, anchor = node["reftarget"].partition("#")
            suffix = ".md" if node["refdomain"] == "doc" else ""  # which MyST has taken off
            target = (Path(node.source).parent / (path + suffix)).resolve()
            if path and target.exists() and target.is_relative_to(ROOT):
                self.lead(node, target, anchor or node.get("reftargetid"))

    def lead(self, node: nodes.Element, target: Path, anchor: str | None) -> None:
        """Put in the node's place what leads to the target, if anything does."""
        page = PAGES.get(target.relative_to(ROOT).as_posix()) or self.env.path2doc(target)
        module = ".".join(target.relative_to(ROOT).with_suffix("").parts)
        common = {"refdoc": self.env.docname, "refexplicit": True}
        if page in self.env.found_docs:
            link = pending_xref(refdomain="doc", reftype="myst", reftarget=page, reftargetid=anchor, **common)
        elif module in documented():
            link = pending_xref(refdomain="py", reftype="mod", reftarget=module, **common)
        elif target.is_file():
            link = download_reference(reftype="download", reftarget="/" + os.path.relpath(target, DOCS), **common)
        else:
            link = nodes.inline()
        link.source, link.line = node.source, node.line
        link += node.children
        node.replace_self(link)


@cache
def documented() -> set[str]:
    """The modules that have a place in the API reference."""
    pages = [page.read_text(encoding="utf-8") for page in sorted((DOCS / "api").glob("*.md"))]
    return set(re.findall(r"^\.\. (?:auto|py:)module:: (\S+)", "\n".join(pages), re.M))


def say_language(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.Node | None) -> None:
    """Tell the page's template its language, and the page of the same name in the other one."""
    ours, theirs = ("zh_TW/", "") if page.startswith("zh_TW/") else ("", "zh_TW/")
    context["language"] = LANGUAGES[ours][0]
    twin = theirs + page.removeprefix(ours)
    if twin in app.env.found_docs:
        context["twin"] = (twin, *LANGUAGES[theirs])


def setup(app: Sphinx) -> dict[str, bool]:
    """Have Sphinx do both."""
    app.add_transform(RepositoryLinks)
    app.connect("html-page-context", say_language)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
