"""Step 5 of 6. A tape to train on, and how it goes wrong.

    python examples/steps/step5_training.py

Training makes a tape and walks it, over and over, and writes to its parameters in between. So a tape is freed as it is
walked. And since a cache may hold a parameter itself and no copy of it, a parameter that is written to too early would
make a wrong gradient, and nobody would know. So each tensor counts its writes, and the tape compares.

What to look for: a network of four pairs that learns to tell two spirals apart; and two mistakes that are noticed.
"""

import numpy as np
from step2_tape import tape
from step3_arrays import fit
from step4_pairs import rms_norm, rms_norm_backward


def add(xp, a, b):
    """y = a + b"""
    return a + b, None


def add_backward(xp, dy, cache):
    """ā = ȳ ;   b̄ = ȳ"""
    return dy, dy


def linear(xp, x, w, b):
    """y = x w + b"""
    return x @ w + b, (x, w)


def linear_backward(xp, dy, cache):
    """x̄ = ȳ wᵀ ;   w̄ = xᵀ ȳ ;   b̄ = Σ_rows ȳ"""
    x, w = cache
    return dy @ w.T, x.T @ dy, dy


def tanh(xp, x):
    """y = tanh(x)"""
    y = xp.tanh(x)
    return y, y


def tanh_backward(xp, dy, y):
    """x̄ = ȳ (1 − y²)"""
    return (dy * (1.0 - y * y),)


PAIRS = {add: add_backward, linear: linear_backward, tanh: tanh_backward, rms_norm: rms_norm_backward}


class Tensor:
    """An array that counts its writes, and how it was made."""

    def __init__(self, array, pair=None, inputs=(), cache=None):
        self.array, self.pair, self.inputs, self.cache = array, pair, inputs, cache
        self.writes, self.seen = 0, [x.writes for x in inputs]
        self.depth = 1 + max((x.depth for x in inputs), default=-1)

    def write(self, values):
        """Write to the array in place: caches that hold it hold something else now."""
        self.array[...] = values
        self.writes += 1


def apply(forward, *inputs):
    """Run the forward of a pair, and remember."""
    y, cache = forward(np, *[t.array for t in inputs])
    return Tensor(y, forward, inputs, cache)


def backward(root, cotangent):
    """The gradients of all leaves, by leaf. The tape is checked before the first step, and freed on the way."""
    order, cotangents = tape(root), {root: cotangent}
    for y in order:
        if y.seen != [x.writes for x in y.inputs]:
            raise RuntimeError(f"{y.pair.__name__}: " + ("an input was written to since" if y.inputs else "was freed"))
    for y in [y for y in order if y.pair]:
        for x, dx in zip(y.inputs, PAIRS[y.pair](np, cotangents.pop(y), y.cache), strict=True):
            cotangents[x] = cotangents.get(x, 0.0) + fit(dx, x.array.shape)
        y.inputs, y.cache = (), None
    return cotangents


def network(x, w1, b1, gain, w2, b2, w3, b3):
    """A Linear; a block that adds to its stream, and sees it normalized; a Linear."""
    stream = apply(linear, x, w1, b1)
    change = apply(linear, apply(rms_norm, stream, gain), w2, b2)
    return apply(linear, apply(tanh, apply(add, stream, change)), w3, b3)


def main():
    """Train, then make two mistakes."""
    turn, sign = np.linspace(1.5, 9.0, 200)[:, None], np.where(np.arange(200) % 2, 1.0, -1.0)[:, None]
    points = np.concatenate([np.cos(turn), np.sin(turn)], 1) * turn * sign / 9.0  # on two spirals; sign says on which
    rng = np.random.default_rng(0)
    shapes = (2, 32), (32,), (32,), (32, 32), (32,), (32, 1), (1,)
    parameters = [Tensor(rng.normal(size=shape) / np.sqrt(shape[0])) for shape in shapes]
    for step in range(501):
        logit = network(Tensor(points), *parameters)
        if step % 100 == 0:
            loss, right = np.logaddexp(0.0, -sign * logit.array).mean(), (logit.array * sign > 0).mean()
            print(f"step {step:3}: loss {loss:.3f}, {right:.0%} on the right side")
        gradients = backward(logit, -sign / (1.0 + np.exp(sign * logit.array)) / len(sign))  # of that loss
        for p in parameters:
            p.write(p.array - 0.5 * gradients[p])
    assert right > 0.95
    for mistake in (lambda logit: parameters[5].write(0.0), lambda logit: backward(logit, sign)):
        logit = network(Tensor(points), *parameters)
        mistake(logit)
        try:
            backward(logit, sign)
            raise AssertionError("nobody noticed")
        except RuntimeError as error:
            print(f"refused: {error}")


if __name__ == "__main__":
    main()
