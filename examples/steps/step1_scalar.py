"""Step 1 of 6. A number that remembers where it came from.

    python examples/steps/step1_scalar.py

Each operation keeps, beside its result, its inputs and the slope of the result along each of them. That is all the
chain rule asks for: a slope of the result reaches an input multiplied by the slope along that input. `backward` follows
every path from the result to the inputs, and adds up what arrives.

What to look for: the slopes agree with finite differences. And how many numbers are visited, on the last lines: this
step walks paths, of which there may be very many. Step 2 walks numbers.
"""


class Number:
    """A float, and how it was made: its inputs, and ∂(this)/∂(each of them)."""

    visits = 0  # over all numbers, to be counted below

    def __init__(self, value, inputs=(), slopes=()):
        self.value, self.inputs, self.slopes = float(value), inputs, slopes
        self.grad = 0.0

    def __add__(self, other):
        return Number(self.value + other.value, (self, other), (1.0, 1.0))

    def __mul__(self, other):
        return Number(self.value * other.value, (self, other), (other.value, self.value))

    def __pow__(self, n):
        return Number(self.value**n, (self,), (n * self.value ** (n - 1),))

    def backward(self, cotangent=1.0):
        """Add cotangent · ∂(this)/∂x to x.grad, for each x that this was made from."""
        Number.visits += 1
        self.grad += cotangent
        for x, slope in zip(self.inputs, self.slopes, strict=True):
            x.backward(cotangent * slope)


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
    print("   x    ∂loss/∂x  by differences")
    for i, x_i in enumerate(x):
        expected = difference(values, i)
        print(f"{x_i.value:4.0f}{x_i.grad:12.6f}{expected:16.6f}")
        assert abs(x_i.grad - expected) < 1e-8
    # The norm does not change when x is stretched, so there is no slope along x itself.
    along = sum(x_i.value * x_i.grad for x_i in x)
    assert abs(along) < 1e-12

    print("doublings  numbers  visits")
    for n in (5, 10, 15):
        y = one = Number(1.0)
        for _ in range(n):
            y = y + y
        Number.visits = 0
        y.backward()
        print(f"{n:9}{n + 1:9}{Number.visits:8}")
        assert one.grad == 2.0**n
        assert Number.visits == 2 ** (n + 1) - 1


if __name__ == "__main__":
    main()
