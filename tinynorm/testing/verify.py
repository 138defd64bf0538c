"""The one property that holds for every operation: what the tests, `property_test` and the command line all ask."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

from ..backend import CPU, to_device, why_no_device
from ..errors import GradientError
from ..formulas.types import Array
from ..tensor import Tensor, as_tensor
from .cases import Case
from .examine import Report, examine
from .values import LAYOUTS

Function = Callable[..., Tensor]
Outcome = list[Array]  #: the value, and then the gradient of each input, empty for one that is not differentiated

EPS = {dtype: float(np.finfo(dtype).eps) for dtype in (np.float16, np.float32, np.float64)}


def verify(
    case: Case | Function, inputs: Sequence[Array], options: Mapping[str, Any] | None = None, *, seed: int = 0
) -> Report:
    """Hold one call of an operation to everything that operations promise.

    - In float64 its gradients agree with central differences and, where it is analytic, with the complex step.
    - They are the same from a second backward, after other calls in between, and where the others are not wanted.
    - They and the value are the same in any memory layout of inputs and cotangent, and nothing is written to these.
    - In float32 and float16, they are those of float64 as far as such digits go, and the value keeps the dtype.
    - On a GPU, where there is one, they are those of the host.

    Args:
        case: a `Case`, or any function of Tensors.
        inputs: arrays; the floating-point ones are differentiated, in float64.
        options: passed on to the call by name.
        seed: of the cotangents.

    Returns:
        the report of the gradient check.

    Raises:
        GradientError: when one of these does not hold. The message has the shapes, the options and the seed.

    >>> import numpy as np
    >>> import tinynorm as tn
    >>> verify(tn.tanh, [np.array([0.5, -2.0])]).passed
    True
    """
    case = case if isinstance(case, Case) else Case.of_function(case)
    chosen = dict(options or {})

    def function(*tensors: Tensor) -> Tensor:
        return case.call(*tensors, **chosen)

    function.__name__ = case.name
    inputs = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in inputs]
    where = f"in {case.name} of shapes {[a.shape for a in inputs]} with options {chosen} and seed {seed}"
    try:
        report = examine(function, inputs, seed=seed)
        if not report.passed:
            raise GradientError(f"{report.message}\n{where}")
        for problem in _problems(case, function, inputs, np.random.default_rng([seed, 1])):
            raise GradientError(f"{case.name}: {problem}\n{where}")
    except GradientError:
        raise
    except Exception as error:
        error.add_note(where)
        raise
    return report


def _problems(case: Case, function: Function, inputs: list[Array], rng: np.random.Generator) -> Iterator[str]:
    """All that numeric derivatives alone do not show, in words."""
    dy = np.asarray(rng.normal(size=function(*map(as_tensor, inputs)).shape))
    right = _outcome(function, inputs, dy)
    yield from _of_other_calls(function, inputs, dy, right)
    yield from _of_layouts(function, inputs, dy)
    yield from _of_dtypes(case, function, inputs, dy, rng)
    if why_no_device() is None:
        yield from _differences("on the GPU", _outcome(function, inputs, dy, "cuda"), right, inputs, dy, 2**20)


def _of_other_calls(function: Function, inputs: list[Array], dy: Array, right: Outcome) -> Iterator[str]:
    others = [as_tensor(0.9 * a if a.dtype.kind == "f" else a) for a in inputs]
    function(*others)  # which an operation must have forgotten
    leaves = _leaves(inputs)
    y = function(*leaves)
    function(*others)
    if not y.requires_grad:
        return
    for times in (1, 2):
        y.backward(dy, retain_graph=True)
        got = [y.detach().numpy(), *(_gradient(t) / times for t in leaves)]
        yield from _differences(f"from backward number {times}", got, right, inputs, dy)
    floats = [k for k, a in enumerate(inputs) if a.dtype.kind == "f"]
    for k in floats if len(floats) > 1 else []:
        alone = _outcome(function, inputs, dy, wanted={k})
        got = [alone[0], *(alone[i + 1] if i == k else g for i, g in enumerate(right[1:]))]
        yield from _differences(f"where input {k} alone is differentiated", got, right, inputs, dy)


def _of_layouts(function: Function, inputs: list[Array], dy: Array) -> Iterator[str]:
    for name, layout in LAYOUTS.items():
        stored = [layout(a) if a.ndim else a for a in inputs]
        cotangent = layout(dy) if dy.ndim else dy
        yield from _of_layout(f"where inputs are {name}", function, stored, dy)
        yield from _of_layout(f"where the cotangent is {name}", function, inputs, cotangent)
    yield from _of_layout("where the cotangent has strides 0", function, inputs, np.broadcast_to(1.7, dy.shape))


def _of_layout(when: str, function: Function, inputs: list[Array], dy: Array) -> Iterator[str]:
    before = [a.copy() for a in [*inputs, dy]]
    got = _outcome(function, inputs, dy)
    for k, (array, copy) in enumerate(zip([*inputs, dy], before, strict=True)):
        if array.tobytes() != copy.tobytes():
            yield f"{when}, {f'input {k}' if k < len(inputs) else 'the cotangent'} has been written to"
    yield from _differences(when, got, _outcome(function, before[:-1], before[-1]), inputs, dy)


def _of_dtypes(
    case: Case, function: Function, inputs: list[Array], dy: Array, rng: np.random.Generator
) -> Iterator[str]:
    """float16 is computed in float32 and rounded once, so one operation has the digits of float32 before that."""
    for dtype in (np.float32, np.float16):
        digits = 8 * sqrt(EPS[dtype])
        if dtype == np.float16 and case.op is not None:
            digits = 8 * sqrt(EPS[np.float32]) + EPS[np.float16]
        problems: list[str] = []
        for attempt in range(3):  # what rounding has done at ill-conditioned points is gone at others; a fault stays
            moved = [a * (1.0 - 0.1 * rng.random(a.shape) * attempt) if a.dtype.kind == "f" else a for a in inputs]
            rounded = [np.asarray(a, dtype) if a.dtype.kind == "f" else a for a in moved]
            wide = [np.asarray(a, np.float64) if a.dtype.kind == "f" else a for a in rounded]
            narrow_dy = dy.astype(dtype)
            right = _outcome(function, wide, narrow_dy.astype(np.float64))
            if any(np.abs(a).max(initial=0.0) > np.finfo(dtype).max for a in right if a.dtype.kind == "f"):
                break  # of numbers that the dtype does not have
            got = _outcome(function, rounded, narrow_dy)
            if case.keeps_dtype and right[0].dtype == np.float64 and got[0].dtype != dtype:
                yield f"the result has dtype {got[0].dtype} where the inputs have {np.dtype(dtype)}"
            when = f"in {np.dtype(dtype)}"
            problems = list(_differences(when, got, right, wide, dy, digits / EPS[np.float64]))
            if not problems:
                break
        yield from problems


def _leaves(inputs: Sequence[Array], device: str = CPU, wanted: set[int] | None = None) -> list[Tensor]:
    """The inputs as Tensors that share their memory. `wanted`: those to differentiate; None stands for all floats."""
    tensors = [as_tensor(to_device(a, device)) for a in inputs]
    for k, t in enumerate(tensors):
        t.requires_grad = t.dtype.kind == "f" and (wanted is None or k in wanted)
    return tensors


def _gradient(leaf: Tensor) -> Array:
    """What has arrived at a leaf, on the host: 0 where the function does not depend on it, nothing where none may."""
    if not leaf.requires_grad:
        return np.zeros(0)
    return np.zeros(leaf.shape) if leaf.grad is None else to_device(leaf.grad, CPU)


def _outcome(
    function: Function, inputs: Sequence[Array], dy: Array, device: str = CPU, wanted: set[int] | None = None
) -> Outcome:
    leaves = _leaves(inputs, device, wanted)
    y = function(*leaves)
    if y.requires_grad:
        y.backward(to_device(dy, device))
    return [y.detach().to(CPU).numpy(), *map(_gradient, leaves)]


def _differences(
    when: str, got: Outcome, right: Outcome, inputs: Sequence[Array], dy: Array, most: float = 2**10
) -> Iterator[str]:
    """Where two outcomes differ by more than `most` times float64's rounding.

    A value is as well known as what it is made of: rounding moves y by ε (|y| + Σ |∂y/∂x| |x|). A gradient is as well
    known as the value is for its input: rounding moves ∂(ȳ y)/∂x by that times |ȳ|/|x|. What is below a tenth, beside
    values of about one, may be all cancellation.
    """
    scale = _size(dy) or 1.0
    moved = [_size(gradient) * _size(a) for gradient, a in zip(right[1:], inputs, strict=True) if a.dtype.kind == "f"]
    known = EPS[np.float64] * max(scale * max(0.1, _size(right[0])), *moved)
    bounds = [known / scale, *(known / np.maximum(np.abs(a), 1e-3 * _size(a) or 1.0) for a in inputs)]
    for k, (g, r, bound) in enumerate(zip(got, right, bounds, strict=True)):
        what = f"the gradient of input {k - 1}" if k else "the value"
        if g.shape != r.shape:
            yield f"{when}, {what} has shape {g.shape}, not {r.shape}"
        if not g.size or g.shape != r.shape:
            continue
        with np.errstate(invalid="ignore"):
            wrong = ~((g == r) | (np.isnan(g) & np.isnan(r)) | (np.abs(g - r) <= most * bound))
        if wrong.any():
            i = tuple(int(n) for n in np.argwhere(wrong)[0])
            yield f"{when}, {what} at {i} is {g[i]:.9g}, not {r[i]:.9g}"


def _size(a: Array) -> float:
    """The largest number that is finite."""
    return float(np.abs(a, where=np.isfinite(a), out=np.zeros(a.shape)).max(initial=0.0))
