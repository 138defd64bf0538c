"""Mathematics as MathML, which browsers draw by themselves: no script, no fonts and no network."""

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator


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
        return str(tex2mathml(node.astext(), as_block=as_block))
    except (MathError, AttributeError) as error:  # the latter for a line break outside of an environment
        raise ExtensionError(f"{node.source}:{node.line}: {node.astext()!r} is no formula: {error}") from error


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer "mathml"."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
