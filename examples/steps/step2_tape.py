"""Step 2 of 6. Every number once: the tape.

    python examples/steps/step2_tape.py

A number hands on its cotangent only when all of it has arrived, so each is visited once. For that, a number must come
before its inputs, and after everything made from it. Its depth says so: one more than that of its deepest input. The
walk is a loop and no recursion, so a graph may be as long as memory allows.

What to look for: 1,000 doublings take 1,001 visits, where step 1 would need more than there are atoms in the universe;
and a chain of 100,000 operations, which Python's recursion would not survive.
"""


class Number:
    """A float, how it was made, and how deep it lies: its inputs are always less deep."""

    def __init__(self, value, inputs=(), slopes=()):
        self.value, self.inputs, self.slopes = float(value), inputs, slopes
        self.depth = 1 + max((x.depth for x in inputs), default=-1)
        self.grad = 0.0

    def __add__(self, other):
        return Number(self.value + other.value, (self, other), (1.0, 1.0))

    def __mul__(self, other):
        return Number(self.value * other.value, (self, other), (other.value, self.value))

    def __pow__(self, n):
        return Number(self.value**n, (self,), (n * self.value ** (n - 1),))

    def backward(self):
        """Add ∂(this)/∂x to x.grad, for each x that this was made from; how many were visited."""
        order = tape(self)
        cotangents = {self: 1.0}
        for y in order:
            dy = cotangents.pop(y)  # all of it has arrived
            y.grad += dy
            for x, slope in zip(y.inputs, y.slopes, strict=True):
                cotangents[x] = cotangents.get(x, 0.0) + dy * slope
        return len(order)


def tape(root):
    """All that the root was made from, and itself, each once, the deepest first."""
    seen, stack = {root}, [root]
    while stack:
        fresh = [x for x in stack.pop().inputs if x not in seen]
        seen.update(fresh)
        stack.extend(dict.fromkeys(fresh))
    return sorted(seen, key=lambda number: number.depth, reverse=True)


def rms_norm(x):
    """A row of Numbers, divided by its root mean square: y_i = x_i (mean(x²))^(−1/2)."""
    total = x[0] * x[0]
    for x_i in x[1:]:
        total += x_i * x_i
    r = (total * Number(1.0 / len(x))) ** -0.5
    return [x_i * r for x_i in x]


def loss(x):
    """A number to differentiate: the first component of the norm times 2, plus the second times −3."""
    y = rms_norm(x)
    return y[0] * Number(2.0) + y[1] * Number(-3.0)


def difference(values, i, h=1e-5):
    """∂loss/∂x_i, seen from outside: (f(x + h) − f(x − h)) / 2h."""
    up, down = ([v + (j == i) * step for j, v in enumerate(values)] for step in (h, -h))
    return (loss([*map(Number, up)]).value - loss([*map(Number, down)]).value) / (2.0 * h)


def main():
    """Differentiate, compare, count."""
    values = [3.0, 4.0]
    x = [Number(value) for value in values]
    loss(x).backward()
    for i, x_i in enumerate(x):
        print(f"x = {x_i.value:.0f}: slope {x_i.grad:9.6f}, by differences {difference(values, i):9.6f}")
        assert abs(x_i.grad - difference(values, i)) < 1e-8

    y = one = Number(1.0)
    for _ in range(1000):
        y = y + y
    visits = y.backward()
    print(f"1,000 doublings: {visits:,} visits, slope 2^1000 = {one.grad:.6e}")
    assert visits == 1001
    assert one.grad == 2.0**1000

    y = x = Number(1.0)
    shrink = Number(1.0 - 1e-5)
    for _ in range(100_000):
        y = y * shrink
    y.backward()
    print(f"100,000 products with 1 − 1e-5: slope {x.grad:.6f}, and 1/e = 0.367879")
    assert abs(x.grad - shrink.value**100_000) < 1e-12


if __name__ == "__main__":
    main()
