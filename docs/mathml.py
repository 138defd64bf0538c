"""Mathematics as MathML, which browsers draw by themselves: no script, no fonts and no network.

docutils translates. What it gets wrong is put right here: an index of a letter with an accent, which it sets below the
letter; a note at a brace, which it sets beside it; a fraction of two digits; the bar over several letters; bars that
grow to the height of their line; the size of what stands in aligned rows. What it does not know stops the build, such
as ``tfrac``, ``substack``, ``color``, and line breaks outside of an environment.
"""

import re
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator

NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'  # which a page in HTML does without
TONE, BAR = "\u02c9", "\u00af"  # docutils' bar is a mark of Chinese tones, for which fonts of formulas have no glyph
BRACES = ("⏞", "⏟")
FENCES = ("‖", "⟨", "⟩")


def visit_math(translator: HTML5Translator, node: nodes.math) -> None:
    """A formula in a line."""
    translator.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def visit_displaymath(translator: HTML5Translator, node: nodes.math_block) -> None:
    """A formula of its own."""
    translator.body.append(f'<div class="math">{_mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def _mathml(node: Any, as_block: bool) -> str:
    try:
        return mathml(node.astext(), as_block)
    except (MathError, AttributeError) as error:  # the latter for a line break outside of an environment
        raise ExtensionError(f"{node.source}:{node.line}: {node.astext()!r} is no formula: {error}") from error


def mathml(tex: str, as_block: bool) -> str:
    """The formula for a page."""
    tex = re.sub(r"\\frac\s*(\d)\s*(\w)", r"\\frac{\1}{\2}", tex)
    xml = str(tex2mathml(tex, as_block=as_block)).replace(NAMESPACE, "").replace("&ApplyFunction;", "\u2061")
    xml = xml.replace(TONE, BAR)
    root = ElementTree.fromstring(xml)
    for element in list(root.iter()):
        _mend(element)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _mend(element: Element) -> None:
    """Change what docutils made of one element, in place."""
    last = element[-1] if len(element) else element
    for child in element:  # bars and angles grow between \left and \right, which stand at the ends of a row
        if child.text in FENCES and not (element.tag == "mrow" and child in (element[0], last)):
            child.set("stretchy", "false")
    if element.tag == "munderover" and last.get("stretchy") == "false":
        letter, index, accent = element
        accented = Element("mover", accent="true")
        accented[:] = [letter, accent]
        element.tag, element[:] = "msub", [accented, index]
    elif element.tag in ("msub", "msup") and len(element[0]) and element[0][-1].text in BRACES:
        element.tag = {"msub": "munder", "msup": "mover"}[element.tag]
    elif element.tag == "msup" and element[0].tag == "munderover":
        _mend(element[0])
        if element[0].tag == "msub":
            element.tag, element[:] = "msubsup", [*element[0], element[1]]
    elif element.tag == "mover" and last.text == "_":
        element.tag, element[:] = "mrow", [element[0]]
        element.set("class", "overline")
    elif element.tag == "mtable" and element.get("class") == "ams-align":
        element.set("displaystyle", "true")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer "mathml"."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
