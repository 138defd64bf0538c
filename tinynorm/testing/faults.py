"""Faults planted in a formula's source, one at a time: a term dropped, a sign, a factor 1.01, a reduction left out …

Each fault gives a copy of the formula, and of the formulas that it calls, in which one expression is another; the
modules they come from are left as they are.

Comparisons are not touched. They choose a side at a kink, where a gradient is a convention and no number can judge it.
"""

import ast
import inspect
from collections.abc import Callable, Iterator
from copy import deepcopy
from types import FunctionType
from typing import Any, NamedTuple

from ..op import Formula
from .rewriting import called_by, compiled, constants, parsed, rebuilt

Change = tuple[ast.AST, ast.AST | None, str]  #: what is replaced, by what (None: the statement goes), in words
Place = tuple[ast.stmt, ast.AST]  #: a part of the syntax, and the statement it stands in

REDUCTIONS = ("sum", "mean", "max", "min", "prod")
ALONG_AN_AXIS = (*REDUCTIONS, "cumsum", "cumprod", "flip")
OF_ONE_ARRAY = (
    *ALONG_AN_AXIS, "transpose", "swapaxes", "reshape", "broadcast_to", "exp", "expm1", "log", "log1p", "sqrt", "tanh",
    "sin", "cos", "square", "sign",
)  # fmt: skip
"""Functions that can be left out, their first argument standing for their result."""

SUMS = {"total": "sum", "average": "mean"}  #: of tinynorm.formulas.summation, in place of those of xp
_XP = ast.Name("xp", ast.Load())

SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


class Fault(NamedTuple):
    """A fault in words, and the formula that has it."""

    function: FunctionType  #: that it was planted in: the formula itself or one that it calls
    line: int  #: of that function's file
    statement: str
    what: str
    formula: Formula


def planted(formula: Formula) -> Iterator[Fault]:
    """Every fault that can be planted in a formula; none in one whose source is not at hand, or that is a lambda."""
    formula = inspect.unwrap(formula)
    functions = called_by(formula)
    for function in functions:
        tree, first = parsed(function)
        for statement, (old, new, what) in changes(tree, constants(function)):
            faulty = compiled(function, deepcopy(tree, {id(old): new or ast.Pass()}))
            line = first + getattr(old, "lineno", 1) - 1
            yield Fault(function, line, _text(statement), what, rebuilt(formula, functions, function, faulty))


def changes(function: ast.FunctionDef, numbers: set[str]) -> Iterator[tuple[ast.stmt, Change]]:
    """All that can be changed in the body of a function, with the statement it is in.

    Args:
        function: its syntax.
        numbers: the names of those that it takes from outside.
    """
    waiting: list[Place] = [(statement, statement) for statement in reversed(function.body)]
    while waiting:
        statement, node = waiting.pop()
        if isinstance(node, (ast.Compare, ast.JoinedStr, ast.FunctionDef, ast.Lambda)):
            continue
        for change in _changes_of(node, numbers):
            yield statement, change
        test = node.test if isinstance(node, (ast.If, ast.IfExp, ast.Assert)) else None
        for child in reversed(list(ast.iter_child_nodes(node))):
            if child is not test:
                waiting.append((child if isinstance(child, ast.stmt) else statement, child))


def _changes_of(node: ast.AST, numbers: set[str]) -> Iterator[Change]:
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()):
            yield from _of_arithmetic(node)
        case ast.BinOp(left, ast.Pow(), ast.Constant(float() | int() as exponent)):
            for other in (exponent + 1, exponent - 1):
                yield node, ast.BinOp(left, ast.Pow(), ast.Constant(other)), f"raises to {other}: `{_text(node)}`"
        case ast.UnaryOp(ast.USub(), operand):
            yield node, operand, f"drops the minus of `{_text(node)}`"
        case ast.Constant(float() as number) if number:
            yield node, ast.Constant(number * 1.01), f"takes {number * 1.01:g} for {number:g}"
        case ast.Name(name, ast.Load()) if name in numbers:
            yield node, _binary(node, ast.Mult(), ast.Constant(1.01)), f"takes 1.01 {name} for {name}"
        case ast.Call(ast.Attribute(ast.Name("xp"), called), [array, *_]):
            yield from _of_call(node, node, called, array, lambda name, array: _call(_XP, name, [array], node))
        case ast.Call(ast.Name(sums), [ast.Name("xp"), array, *rest]) if sums in SUMS:
            options = [ast.keyword(name, value) for name, value in zip(("axis", "keepdims"), rest, strict=False)]
            named = ast.Call(node.func, [_XP, array], [*options, *node.keywords])
            alone = ast.Call(node.func, [array], named.keywords)
            yield from _of_call(node, named, SUMS[sums], array, lambda name, array: _call(_XP, name, [array], alone))
        case ast.Call(ast.Name(helper), [ast.Name("xp"), array, *_]):
            yield node, array, f"leaves out {helper} of `{_text(node)}`"
        case ast.Call(ast.Attribute(array, called), []) if called in OF_ONE_ARRAY:
            yield from _of_call(node, node, called, array, lambda name, array: _call(array, name, [], node))
        case ast.AugAssign(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as operator):
            turned = ast.AugAssign(node.target, SWAPPED[type(operator)](), node.value)
            yield node, turned, f"turns `{_text(node)}` into `{_text(turned)}`"
            yield node, None, f"drops `{_text(node)}`"


def _of_arithmetic(node: ast.BinOp) -> Iterator[Change]:
    """A term or a factor dropped; plus for minus, times for divided by."""
    left, kind, right = node.left, type(node.op), node.right
    if isinstance(left, ast.Compare) or isinstance(right, ast.Compare):
        return  # x + (x == 0): a guard at one point
    rest = _text(_binary(ast.Name("_"), node.op, right)).removeprefix("_ ")  # with parentheses where there must be some
    yield node, left, f"drops `{rest}`"
    alone: ast.expr = right
    if kind is ast.Sub:
        alone = ast.UnaryOp(ast.USub(), right)
    elif kind is ast.Div:
        alone = _binary(ast.Constant(1.0), ast.Div(), right)
    if not (isinstance(left, ast.Constant) and left.value == 1 and kind in (ast.Mult, ast.Div)):
        yield node, alone, f"drops `{_text(left)}` of `{_text(node)}`"
    swapped = _binary(left, SWAPPED[kind](), right)
    yield node, swapped, f"takes `{SIGNS[type(swapped.op)]}` for `{SIGNS[kind]}` in `{_text(node)}`"


def _of_call(
    node: ast.Call, named: ast.Call, called: str, array: ast.expr, made: Callable[[str, ast.expr], ast.Call]
) -> Iterator[Change]:
    """A function of an array left out or taken for another, over all axes instead of some, its axes lost.

    `named` is the call with its options as keywords, and `made(name, array)` the same call of another function or of
    another array: xp.name(array) or array.name().
    """
    if called in OF_ONE_ARRAY:
        yield node, array, f"leaves out {called} of `{_text(node)}`"
    if called in ("sum", "mean"):
        other = "mean" if called == "sum" else "sum"
        yield node, made(other, array), f"takes {other} for {called} in `{_text(node)}`"
        if (x := _squared(array)) is not None:
            spread = _binary(node, ast.Sub(), ast.BinOp(made("mean", x), ast.Pow(), ast.Constant(2)))
            yield node, spread, f"subtracts the mean's square from `{_text(node)}`"
    if called == "where" and len(node.args) == 3:
        condition, a, b = node.args
        yield node, _with(node, args=[condition, b, a]), f"swaps the arms of `{_text(node)}`"
    if called == "sqrt" and isinstance(array, ast.BinOp) and isinstance(array.op, ast.Add):
        outside = _binary(made(called, array.left), ast.Add(), array.right)
        yield node, outside, f"adds {_text(array.right)} outside the root of `{_text(node)}`"
    for keyword in named.keywords if called in ALONG_AN_AXIS else []:
        without = _with(named, keywords=[k for k in named.keywords if k is not keyword])
        if keyword.arg == "axis" and not _is(keyword.value, None):
            yield node, without, f"goes over all axes in `{_text(node)}`"
        if keyword.arg == "keepdims" and _is(keyword.value, True):
            yield node, without, f"loses the axes of `{_text(node)}`"


def _squared(node: ast.expr) -> ast.expr | None:
    """x of x * x."""
    match node:
        case ast.BinOp(ast.Name(x), ast.Mult(), ast.Name(other)) if x == other:
            return node.left
    return None


def _is(node: ast.expr, value: Any) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _binary(left: ast.expr, operator: ast.operator, right: ast.expr) -> ast.BinOp:
    return ast.BinOp(left, operator, right)


def _call(of: ast.expr, name: str, first: list[ast.expr], like: ast.Call) -> ast.Call:
    """of.name(first, …), with the further arguments of another call."""
    return ast.Call(ast.Attribute(of, name, ast.Load()), first + like.args[len(first) :], like.keywords)


def _with(node: ast.Call, **parts: Any) -> ast.Call:
    return ast.Call(**{"func": node.func, "args": node.args, "keywords": node.keywords, **parts})


def _text(node: ast.AST) -> str:
    return ast.unparse(node)
