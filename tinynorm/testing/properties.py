"""`property_test`: a hypothesis test of an operation, from one line."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import Parameter, signature
from math import inf
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError, MissingExtraError
from ..extend import NewOp
from ..extras import optional
from ..formulas.types import Array
from ..tensor import Tensor
from .cases import Case, Setting
from .choices import Choose, features, shape
from .values import Maker, Shape, real
from .verify import verify


def property_test(function: Callable[..., Tensor], *inputs: str | tuple[str, Maker], **options: Any) -> Any:
    """A test that holds an operation to all that operations promise, over random shapes, values and cotangents.

    What these promises are stands in `verify`: gradients by central differences and by complex step, any memory layout,
    float64, float32 and float16, the GPU where there is one. Hypothesis draws the shapes and a seed, and a NumPy
    Generator makes the values from the seed, so a failure shrinks, repeats, and shows all three.

    Args:
        function: made by `tn.op`, or any function of Tensors that gives a Tensor.
        inputs: the shape of each input, in letters, digits and ``...``; spaces are nothing. A letter is an axis of a
            length from 1 to 4, the same wherever the letter stands; a digit is a length; ``...`` are up to three axes
            of lengths from 0 to 3, the same in all inputs. Values are normal, and differentiated. For others, give
            ``(shape, maker)`` with a ``maker(rng, shape) -> array``; `tinynorm.testing.values` has some: ``positive``,
            ``away_from_zero`` (for functions with a kink there), ``below(10)`` for classes.
        options: passed on to the function by name.

    Returns:
        a function without arguments. pytest collects it where its name begins with "test". Its attribute `case` is what
        `python -m tinynorm check` looks for.

    Raises:
        ArgumentError: for a shape that cannot be read, or more or fewer shapes than the function has inputs.
        MissingExtraError: by the test, where hypothesis is not installed.

    >>> import tinynorm as tn
    >>> test_gelu = tn.testing.property_test(tn.functional.gelu, "...", approximate="tanh")
    >>> test_log = tn.testing.property_test(tn.log, ("...", tn.testing.values.positive))
    >>> test_log()
    """
    case = _case(function, inputs, options)
    try:
        hypothesis = optional("hypothesis", "test")
    except MissingExtraError as error:
        return _later(error, case)
    from .strategies import seeds, settings_of

    def test(setting: Setting, seed: int) -> None:
        verify(case, case.inputs(np.random.default_rng(seed), setting), setting.options, seed=seed)

    test.__name__ = test.__qualname__ = "test_" + re.sub(r"\W", "_", case.name)
    test.__doc__ = f"{case.name} keeps what operations promise."
    for setting in case.always:
        test = hypothesis.example(setting=setting, seed=0)(test)
    made: Any = hypothesis.settings(deadline=None)(hypothesis.given(setting=settings_of(case), seed=seeds())(test))
    made.case = case
    return made


def _later(missing: MissingExtraError, case: Case) -> Any:
    """A test that cannot run; the file around it can be imported nevertheless, and its operations checked."""

    def test() -> None:
        raise missing

    made: Any = test
    made.case = case
    return made


class Axes(NamedTuple):
    """A shape in letters, digits and ``...``."""

    before: str
    batch: bool
    after: str

    @classmethod
    def read(cls, k: int, text: Any) -> "Axes":
        """Raises `ArgumentError` for what is none. `k` is the number of the input."""
        letters = text.replace(" ", "") if isinstance(text, str) else "?"
        found = re.fullmatch(r"([A-Za-z\d]*)(\.\.\.)?([A-Za-z\d]*)", letters)
        if found is None:
            raise ArgumentError(
                f"property_test: input {k} is {text!r}; write its shape in letters, digits and '...', such as '...D', "
                "or a pair of that and a maker of values"
            )
        return cls(found[1], found[2] is not None, found[3])

    def shape(self, batch: Shape, lengths: dict[str, int]) -> Shape:
        """The shape, given what the letters and ``...`` stand for."""
        before, after = (
            tuple(int(c) if c.isdigit() else lengths[c] for c in part) for part in (self.before, self.after)
        )
        return (*before, *(batch if self.batch else ()), *after)


def _case(function: Callable[..., Tensor], inputs: Sequence[Any], options: dict[str, Any]) -> Case:
    pairs = [given if isinstance(given, tuple) and len(given) == 2 else (given, real) for given in inputs]
    if not pairs:
        raise ArgumentError("property_test: name the shapes of the function's inputs, such as '...D'")
    axes = [Axes.read(k, text) for k, (text, _) in enumerate(pairs)]
    case = Case.of_function(function)
    least, most = _inputs_of(function, options)
    if not least <= len(axes) <= most:
        wanted = f"{least}" if least == most else f"{least} or more" if most == inf else f"{least} to {most}"
        raise ArgumentError(f"property_test: {case.name} takes {wanted} inputs; name a shape for each, not {len(axes)}")
    letters = sorted({c for a in axes for c in a.before + a.after if not c.isdigit()})

    def setting(batch: Shape, lengths: dict[str, int]) -> Setting:
        return Setting(tuple(a.shape(batch, lengths) for a in axes), options)

    def drawn(choose: Choose) -> Setting:
        batch = shape(choose) if any(a.batch for a in axes) else ()
        return setting(batch, {c: features(choose) for c in letters})

    def values(rng: np.random.Generator, setting: Setting) -> list[Array]:
        return [np.asarray(make(rng, shape)) for (_, make), shape in zip(pairs, setting.shapes, strict=True)]

    # Nothing, one of all, and squares; the last has no axis shorter than 2.
    always = [setting(batch, dict.fromkeys(letters, n)) for batch, n in [((0,), 2), ((), 1), ((1, 3), 2), ((3,), 3)]]
    return replace(case, inputs=values, always=always, setting=drawn)


def _inputs_of(function: Callable[..., Any], options: dict[str, Any]) -> tuple[int, float]:
    """How many inputs a function takes besides these options, at least and at most, as far as that can be known."""
    try:
        parameters = list(signature(function).parameters.values())
    except (TypeError, ValueError):
        return 0, inf
    if isinstance(function, NewOp):
        parameters = parameters[1:]  # its formula's, without xp
    ordered = [p for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    by_position = [p for p in ordered if p.name not in options]
    least = sum(p.default is Parameter.empty for p in by_position)
    return least, inf if any(p.kind is Parameter.VAR_POSITIONAL for p in parameters) else len(by_position)
