"""Step 3 of 6. Arrays in place of numbers.

    python examples/steps/step3_arrays.py

A slope of an array along an array would be a large matrix, mostly zeros. Nobody needs it: what is needed is its product
with a cotangent. So an operation no longer keeps slopes but a function, its pull-back, from the cotangent of the result
to the cotangents of its inputs. NumPy stretches small inputs to the shape of large ones, and whatever was used many
times collects many cotangents: `fit` adds them up, for all operations, in one place.

What to look for: gradients of arrays, each element of which agrees with a finite difference; and shapes that come back
as they were.
"""

import numpy as np
from step2_tape import tape


class Tensor:
    """An array, how it was made, and how deep it lies."""

    def __init__(self, array, inputs=(), pull_back=None):
        self.array, self.inputs, self.pull_back = np.asarray(array, dtype=float), inputs, pull_back
        self.depth = 1 + max((x.depth for x in inputs), default=-1)
        self.grad = np.zeros(self.array.shape)

    def __add__(self, other):
        return Tensor(self.array + other.array, (self, other), lambda dy: (dy, dy))

    def __mul__(self, other):
        a, b = self.array, other.array
        return Tensor(a * b, (self, other), lambda dy: (dy * b, dy * a))

    def __pow__(self, n):
        a = self.array
        return Tensor(a**n, (self,), lambda dy: (dy * n * a ** (n - 1),))

    def __matmul__(self, other):
        a, b = self.array, other.array
        return Tensor(a @ b, (self, other), lambda dy: (dy @ b.T, a.T @ dy))

    def mean(self):
        """The mean of each row, which stays a column."""
        a = self.array
        return Tensor(a.mean(-1, keepdims=True), (self,), lambda dy: (dy * np.ones(a.shape) / a.shape[-1],))

    def backward(self, cotangent):
        """Add to x.grad what the cotangent of this says of x, for each x that this was made from."""
        cotangents = {self: cotangent}
        for y in tape(self):
            dy = cotangents.pop(y)
            y.grad = y.grad + dy
            if y.inputs:
                for x, dx in zip(y.inputs, y.pull_back(dy), strict=True):
                    cotangents[x] = cotangents.get(x, 0.0) + fit(dx, x.array.shape)


def fit(gradient, shape):
    """Undo broadcasting: add up the cotangents of all the copies that were made of an element."""
    lead = gradient.ndim - len(shape)
    stretched = [i for i in range(gradient.ndim) if i < lead or shape[i - lead] != gradient.shape[i]]
    return gradient.sum(axis=tuple(stretched)).reshape(shape)


def network(x, gain, w, b):
    """A norm and a Linear: rows of x over their root mean squares, times the gain, times w, plus b."""
    return x * (x * x).mean() ** -0.5 * gain @ w + b


def differences(f, array, cotangent, h=1e-6):
    """The gradient of Σ cotangent · f by central differences, element by element."""
    found = np.zeros(array.shape)
    for i in np.ndindex(array.shape):
        step = np.zeros(array.shape)
        step[i] = h
        found[i] = (cotangent * (f(array + step) - f(array - step))).sum() / (2.0 * h)
    return found


def main():
    """Differentiate with respect to every input, and compare."""
    rng = np.random.default_rng(0)
    shapes = {"x": (5, 4), "gain": (4,), "w": (4, 3), "b": (3,)}
    inputs = [Tensor(rng.normal(size=shape)) for shape in shapes.values()]
    y = network(*inputs)
    cotangent = rng.normal(size=y.array.shape)
    y.backward(cotangent)
    for i, (name, t) in enumerate(zip(shapes, inputs, strict=True)):
        others = [other.array for other in inputs]

        def f(array, others=others, i=i):
            return network(*map(Tensor, [*others[:i], array, *others[i + 1 :]])).array

        error = abs(t.grad - differences(f, t.array, cotangent)).max()
        print(f"∂/∂{name:<5} {t.grad.shape!s:<7} largest error {error:.0e}")
        assert t.grad.shape == t.array.shape
        assert error < 1e-8


if __name__ == "__main__":
    main()
