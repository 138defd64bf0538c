"""Two tokens of four numbers through RMSNorm, a gain and a Linear, number by number, and LayerNorm beside it.

    python examples/worked_example.py --plot two_numbers.png

What to look for: RMSNorm divides a row by one number, so zeros, signs and ratios stay. LayerNorm subtracts the mean
first: token 0, whose mean is 1, comes out quite different, token 1, whose mean is small, nearly the same. At the end
the two-number row (3, 4): RMSNorm keeps its direction, and all that LayerNorm leaves of it is which number is larger.
The picture shows that for a fan of such rows.

Each step is one operation per number, to be redone with a pocket calculator. docs/worked-example.md explains the steps,
and takes the gradients back through the same numbers. In a terminal there is colour, unless NO_COLOR is set.

Sources: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019); Ba, Kiros and Hinton, "Layer Normalization"
(2016).
"""

import argparse
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from support import picture_file, run

import tinynorm as tn
from tinynorm.extras import optional

X = np.array([[2.0, -1.0, 0.0, 3.0], [0.5, 1.5, -2.0, 1.0]])  # 2 tokens of 4 features
EPS = 1e-5
GAIN = np.array([0.5, 1.0, 2.0, 1.5])  # one for each feature
WEIGHT = np.array([[1.0, 0.0, -1.0, 0.5], [0.5, -1.0, 0.0, 1.0], [-0.5, 1.0, 0.5, 0.0]])  # 4 features to 3 outputs
BIAS = np.array([0.1, -0.2, 0.3])
TWO = np.array([3.0, 4.0])

RMS, LAYER, BOLD, PLAIN = "\033[34m", "\033[33m", "\033[1m", "\033[0m"  # blue, yellow: apart for all kinds of vision


class Step(NamedTuple):
    """One operation, and what both norms' columns show of it; None where there is nothing to do."""

    name: str
    rms: np.ndarray | None
    layer: np.ndarray | None


def steps() -> Iterator[Step]:
    """From x to the projection."""
    mean = X.mean(axis=1, keepdims=True)
    sides = X, X - mean
    yield Step("x", X, X)
    yield Step("mean of x", None, mean)
    yield Step("c = x - mean", None, sides[1])
    squares = [side * side for side in sides]
    yield Step("squares", *squares)
    means = [square.mean(axis=1, keepdims=True) for square in squares]
    yield Step("mean square", *means)
    roots = [np.sqrt(mean_square + EPS) for mean_square in means]
    yield Step("√(· + ε)", *roots)
    h = [side / root for side, root in zip(sides, roots, strict=True)]
    yield Step("h: divided by it", *h)
    y = [GAIN * side for side in h]
    yield Step("y = g h", *y)
    yield Step("z = W y + b", *(side @ WEIGHT.T + BIAS for side in y))


def differences(last: Step) -> list[float]:
    """How far each norm's z is from what the library's functions give."""
    norms = tn.functional.rms_norm, tn.functional.layer_norm
    z = [tn.functional.linear(norm(X, 4, GAIN, eps=EPS), WEIGHT, BIAS).numpy() for norm in norms]
    return [float(np.abs(a - b).max()) for a, b in zip(z, last[1:], strict=True)]


def cells(row: np.ndarray) -> str:
    """A row to six digits."""
    return "".join(f"{value:>11.6f}" for value in row)


def table(colour: bool) -> Iterator[str]:
    """Two lines for each step, one for each token: RMSNorm on the left, LayerNorm on the right."""
    blue, yellow, bold, plain = (RMS, LAYER, BOLD, PLAIN) if colour else ("", "", "", "")
    yield f"{bold}{'':<18}{blue}{'   RMSNorm':<48}{yellow}   LayerNorm{plain}"
    for name, rms, layer in steps():
        for token in range(len(X)):
            left, right = ("" if side is None else cells(side[token]) for side in (rms, layer))
            yield f"{bold}{'' if token else name:<18}{plain}{blue}{left:<48}{yellow}{right}{plain}".rstrip()


def two_numbers() -> Iterator[str]:
    """What becomes of (3, 4)."""
    rms = np.sqrt(np.mean(TWO * TWO))
    yield f"x = (3, 4): RMS {rms:.6f}, mean {TWO.mean():.6f}, standard deviation {TWO.std():.6f}"
    for name, norm in (("RMSNorm", tn.functional.rms_norm), ("LayerNorm", tn.functional.layer_norm)):
        y = norm(TWO, 2, eps=0.0).numpy()
        yield f"{name:<18}{cells(y)}   length √2 = {np.linalg.norm(y):.6f}"


def plot(file: str) -> None:
    """The circle of radius √2, the all-ones direction, and where each norm sends a fan of rows of two numbers."""
    angle = np.deg2rad(np.arange(0, 360, 20))  # which misses the all-ones direction, where LayerNorm leaves 0
    fan = np.vstack([TWO, (np.resize([0.8, 2.2, 1.8], angle.size) * [np.cos(angle), np.sin(angle)]).T])
    figure = optional("matplotlib.figure", "examples").Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    to_rms, to_layer = (norm(fan, 2, eps=0.0).numpy() for norm in (tn.functional.rms_norm, tn.functional.layer_norm))
    ways = [fan, to_rms], [fan, fan - fan.mean(axis=1, keepdims=True), to_layer]
    titles = "RMSNorm: along the ray, onto the circle", "LayerNorm: centre, then scale; two points are left"
    turn = np.linspace(0, 2 * np.pi, 181)
    for ax, way, title in zip(axes, ways, titles, strict=True):
        ax.plot(np.sqrt(2) * np.cos(turn), np.sqrt(2) * np.sin(turn), color="0.5", lw=1)
        ax.axline((0, 0), slope=1, color="0.5", ls="--", lw=1)
        for i, path in enumerate(np.stack(way, axis=1)):
            size = 4 if i else 8  # (3, 4) is the large one
            ax.plot(*path.T, color="#0072B2", lw=size / 4)
            ax.plot(*path[0], "o", color="#0072B2", mfc="white", ms=size)
            ax.plot(*path[-1], "o", color="#D55E00", ms=size, zorder=3)
        ax.set(title=title, xlabel="feature 0", ylabel="feature 1", aspect="equal")
        ax.spines[["top", "right"]].set_visible(False)
    figure.suptitle("(3, 4) and a fan of others; dashed: the all-ones direction; circle: radius √2")
    figure.savefig(file, dpi=110)


def main() -> None:
    """Print the steps, compare with the library, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", metavar="FILE", type=picture_file, help="draw what becomes of rows of two numbers")
    args = parser.parse_args()
    print(*table(sys.stdout.isatty() and not os.environ.get("NO_COLOR")), sep="\n", end="\n\n")
    *_, last = steps()
    for name, difference in zip(("rms_norm", "layer_norm"), differences(last), strict=True):
        print(f"tinynorm.functional.{name} and linear give the same z; largest difference {difference:.0e}")
    print("", *two_numbers(), sep="\n")
    if args.plot:
        plot(args.plot)


if __name__ == "__main__":
    run(main)
