"""Reading the source of formulas, and making formulas with another source, without touching the originals.

A formula is read together with the functions that it calls, as far as those are formulas too.
"""

import ast
import inspect
import textwrap
from functools import cache
from types import CellType, CodeType, FunctionType
from typing import Any

from ..op import Formula

HOW = ("special", "summation", "looking", "rescue", "centred", "_by_halves")
"""Modules and functions among the formulas that say how something is computed with few roundings, which no gradient
shows. They are not planted with faults; leaving them out is a fault of their callers."""


@cache
def parsed(function: FunctionType) -> tuple[ast.FunctionDef, int]:
    """A function's syntax, without decorators, and the line of its file on which the source starts."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    if not isinstance(tree, ast.FunctionDef) or tree.name != function.__code__.co_name:
        raise TypeError(f"{function.__name__} is not written as a function of its own")
    tree.decorator_list = []
    return tree, first


def called_by(formula: Formula) -> list[FunctionType]:
    """The formula, and all formulas that it calls, directly or through others."""
    found: list[FunctionType] = []
    waiting: list[Any] = [formula]
    while waiting:
        function = waiting.pop()
        known = not isinstance(function, FunctionType) or function in found
        if not known and _is_formula(function, formula) and _is_readable(function):
            found.append(function)
            waiting.extend(_names_used(function).values())
    return found


def _is_readable(function: FunctionType) -> bool:
    try:
        parsed(function)
    except (OSError, SyntaxError, TypeError):
        return False
    return True


def _is_formula(function: FunctionType, formula: Formula) -> bool:
    package, _, module = (function.__module__ or "").rpartition(".")
    if package == "tinynorm.formulas":
        return not {module, function.__name__} & {*HOW}
    return function.__module__ == formula.__module__


def _names_used(function: FunctionType) -> dict[str, Any]:
    """The names in a function that mean something outside of it, and what."""
    outside = inspect.getclosurevars(function)
    meaning = {**outside.globals, **outside.nonlocals}
    names = [n.id for n in ast.walk(parsed(function)[0]) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    return {name: meaning[name] for name in names if name in meaning}


def constants(function: FunctionType) -> set[str]:
    """The names of numbers that a function takes from outside of it."""
    return {name for name, value in _names_used(function).items() if isinstance(value, float) and value}


def compiled(function: FunctionType, tree: ast.FunctionDef) -> CodeType:
    """The code of the changed function, which finds the variables of the functions around it where it found them."""
    tree.name = "faulty"  # so that a function that calls itself looks for its name where it always did
    free = function.__code__.co_freevars
    around = ast.parse(f"def around({', '.join(free)}):\n    pass")
    around.body[0].body = [tree]  # type: ignore[attr-defined]
    ast.fix_missing_locations(around)
    code = compile(around, function.__code__.co_filename, "exec")
    for name in ("around", tree.name):
        (code,) = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name]
    return code


def rebuilt(formula: Formula, functions: list[FunctionType], changed: FunctionType, code: CodeType) -> Formula:
    """The formula with other code in one of its functions; copies of them all, which call each other."""
    spaces: dict[int, dict[str, Any]] = {id(f.__globals__): dict(f.__globals__) for f in functions}
    cells = {f: CellType() for f in functions}  # for those that know each other as variables around them
    copies = {f: _copy(f, code if f is changed else f.__code__, spaces[id(f.__globals__)], cells) for f in functions}
    for function, copy in copies.items():
        cells[function].cell_contents = copy
    for space in spaces.values():
        for name, value in space.items():
            if isinstance(value, FunctionType) and value in copies:
                space[name] = copies[value]
    return copies[formula]  # type: ignore[index]


def _copy(
    function: FunctionType, code: CodeType, space: dict[str, Any], cells: dict[FunctionType, CellType]
) -> FunctionType:
    around = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    found = {name: _cell(cell, cells) for name, cell in around.items()}
    free = tuple(found[name] for name in code.co_freevars)
    copy = FunctionType(code, space, function.__name__, function.__defaults__, free)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _cell(cell: CellType, cells: dict[FunctionType, CellType]) -> CellType:
    value = cell.cell_contents
    return cells.get(value, cell) if isinstance(value, FunctionType) else cell
