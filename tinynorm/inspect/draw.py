"""The graph behind a Tensor as a picture: `draw`."""

import shutil
import subprocess
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, DTypeError, MissingExtraError
from ..graph import Node, Source
from ..memory import Guard
from ..nn.module import Module
from ..tensor import Tensor
from .graphs import in_order, source_of
from .table import Operand, described

TEXT = ("dot", "gv")  #: suffixes of files that hold the text itself
NOTEBOOK = 300  #: operations of which a notebook shows a picture unasked; more take dot minutes
HEAD = """\
digraph {
  bgcolor="white"
  node [fontname="sans-serif", fontsize=11, shape=box, style="rounded,filled", fillcolor="#e8eef7", color="#4a6a9a"]
  edge [fontname="sans-serif", fontsize=9, color="#555555", fontcolor="#555555"]
"""
LOOKS = {
    "leaf": 'style="filled", fillcolor="#fdf0d5", color="#b0781e"',
    "constant": 'shape=plaintext, style="", fontcolor="#555555"',
    "result": 'shape=plaintext, style="", fontcolor="#000000"',
}


class Drawing(str):
    """A graph in DOT, the language of Graphviz. A notebook shows it as a picture where Graphviz is installed.

    >>> import tinynorm as tn
    >>> drawing = tn.inspect.draw(tn.exp(tn.tensor([1.0], requires_grad=True)))
    >>> drawing.count("->")
    2
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_svg_(self) -> str | None:
        if shutil.which("dot") is None or self.count("\n") > NOTEBOOK:
            return None
        return _rendered(self, "svg").decode()


def draw(
    tensor: Tensor, names: Module | Mapping[str, Tensor] | None = None, file: str | PathLike[str] | None = None
) -> Drawing:
    """The graph behind a result: its operations, and the leaves and constants that they begin with.

    Arrows go from what is computed with to what is computed, with the shapes that go along them.

    Args:
        tensor: a result that has a graph, such as a loss.
        names: what the leaves are called: a module, whose parameters have names, or a dict of Tensors.
        file: where to write the picture, in the format of its suffix: .svg, .png, .pdf or whatever else Graphviz's
            program `dot` knows; .dot or .gv for the text itself, which needs no Graphviz.

    Returns:
        the text, a str; the same for the same graph.

    Raises:
        GraphError: for a tensor that has no graph, or whose graph was freed.
        MissingExtraError: for a picture where Graphviz is not installed.
        ArgumentError: for a suffix that `dot` does not know.

    >>> import tinynorm as tn
    >>> w = tn.tensor([1.0, 2.0], requires_grad=True)
    >>> text = tn.inspect.draw((w * w).sum(), names={"w": w})
    >>> print(*[line.strip() for line in text.splitlines() if "->" in line], sep="\\n")
    a0 -> n0 [label="2"]
    a0 -> n0 [label="2"]
    n0 -> n1 [label="2"]
    n1 -> result [label="()"]
    """
    root = source_of("draw", tensor)
    text = Drawing("\n".join(_lines(root, in_order(root), _names(names))))
    if file is not None:
        _write(text, Path(file))
    return text


def _names(names: Any) -> dict[Source, str]:
    """What leaves are called."""
    if names is None:
        return {}
    if not isinstance(names, (Module, Mapping)):
        raise DTypeError(f"draw: names must be a nn.Module or a dict of Tensors, not a {type(names).__name__}")
    pairs = names.named_parameters() if isinstance(names, Module) else names.items()
    return {t._source: str(name) for name, t in pairs if isinstance(t, Tensor) and t._source is not None}


def _lines(root: Source, nodes: list[Node], names: dict[Source, str]) -> list[str]:
    """The text line by line: each operation, and what goes into it."""
    lines, ids = [HEAD.rstrip()], {source: f"n{i}" for i, source in enumerate(nodes)}
    begun: dict[Any, str] = {}

    def begin(key: Any, label: str, look: str) -> str:
        """What no operation has made: a leaf, an array or a number."""
        if key not in begun:
            begun[key] = f"a{len(begun)}"
            lines.append(f"  {begun[key]} [label={_quoted(label)}, {LOOKS[look]}]")
        return begun[key]

    def arrow(source: Source | None, kept: Any, into: str) -> None:
        if isinstance(source, Node):
            start, operand = ids[source], Operand(source.shape, source.dtype)
        elif source is not None:
            start, operand = begin(source, names.get(source, "leaf"), "leaf"), Operand(source.shape, source.dtype)
        elif isinstance(kept, Guard):
            start, operand = begin(id(kept.array), "constant", "constant"), Operand(kept.array.shape, kept.array.dtype)
        else:
            lines.append(f"  {begin(object(), repr(kept), 'constant')} -> {into}")
            return
        lines.append(f"  {start} -> {into} [label={_quoted(described(operand, root.dtype))}]")

    for node in nodes:
        lines.append(f"  {ids[node]} [label={_quoted(node.op.name)}]")
        for source, kept in zip(node.sources, node.inputs, strict=True):
            if source is not None or kept is not None:
                arrow(source, kept, ids[node])
    lines.append(f'  result [label="result", {LOOKS["result"]}]')
    arrow(root, None, "result")
    return [*lines, "}"]


def _quoted(text: str) -> str:
    """Text as DOT takes it, in which neither quotes nor backslashes end or mean anything."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _write(text: str, file: Path) -> None:
    kind = file.suffix.removeprefix(".").lower()
    if not kind:
        raise ArgumentError(f"draw: {str(file)!r} must end in a suffix that says the format, such as .svg or .dot")
    if kind in TEXT:
        file.write_text(text, encoding="utf-8")
    else:
        file.write_bytes(_rendered(text, kind))


def _rendered(text: str, kind: str) -> bytes:
    """The picture, by Graphviz."""
    program = shutil.which("dot")
    if program is None:
        raise MissingExtraError(
            "draw: a picture needs Graphviz, and its program `dot` is not on the path; install it (for example with "
            "apt install graphviz, or from https://graphviz.org/download), or write the text into a .dot file"
        )
    done = subprocess.run([program, f"-T{kind}"], input=text.encode(), capture_output=True, check=False)
    if done.returncode:
        raise ArgumentError(f"draw: dot cannot make a .{kind}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
