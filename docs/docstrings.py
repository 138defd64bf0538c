"""Docstrings are written for readers of the source; this is what reStructuredText has to be told of them.

A formula stands indented between paragraphs. That is a quotation, whose lines run into one another; here they become a
literal block, which shows them as they stand. And |x| and ``*inputs`` are mathematics and Python, not markup.
"""

import re

from sphinx.application import Sphinx


def prepare(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Change a docstring's lines, in place."""
    kept = [""]
    state = ""  # what the line before belongs to: "text", "literal", "example", or something else
    for line in lines:
        if line.startswith(">>>"):
            state = "example"
        elif state == "example":
            state = "example" if line else ""
        elif state == "text" and line.startswith("    ") and not kept[-1].strip():
            kept += ["::", ""]
            state = "literal"
        elif line and not line.startswith(" "):
            state = "literal" if line.endswith("::") else "" if line.startswith(("..", ":")) else "text"
        kept.append(line if state in ("literal", "example") else _escaped(line))
    lines[:] = kept[1:]


def _escaped(line: str) -> str:
    """The line with its stars and bars as such, where they are not between backticks."""
    parts = re.split(r"(`+[^`]*`+)", line)
    return "".join(part if part.startswith("`") else re.sub(r"(?<!\\)([*|])", r"\\\1", part) for part in parts)


def setup(app: Sphinx) -> dict[str, bool]:
    """Run after napoleon, which makes fields of sections like ``Args:``, whose lines are indented too."""
    app.connect("autodoc-process-docstring", prepare, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
