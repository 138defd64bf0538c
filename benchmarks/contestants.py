"""The same work in each library. Every method takes NumPy arrays and gives calls to be measured, whose results agree.

`norm(kind, x, parameters, dy)` gives a forward without a tape, and a forward with its backward; `linear` the latter
alone; `step` a whole training step with Adam; `overhead` a tiny graph, there and back. A library's adapter leaves out
what the library does not have.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import count
from types import SimpleNamespace
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np

import tinynorm as tn
from tinynorm.bench import norm_calls

Call = Callable[..., Any]
Arrays = Sequence[np.ndarray]
# Each contestant makes its own model: a parameter that was looked at is watched from then on.
Model = Callable[[], tn.nn.PreNormMLP]

EPS = 1e-5
LEARNING_RATE = 1e-3


class Tinynorm:
    """The public API, tape and all."""

    name = "tinynorm"

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def threads(self, n: int) -> None:
        """Use n threads."""
        tn.set_num_threads(n)

    def _leaves(self, arrays: Arrays) -> list[tn.Tensor]:
        return [tn.tensor(a, device=self.device, requires_grad=True) for a in arrays]

    def norm(self, kind: str, x: np.ndarray, parameters: Arrays, dy: np.ndarray) -> tuple[Call, Call]:
        """RMSNorm with a gain, or LayerNorm with gain and bias."""
        return norm_calls(getattr(tn.functional, kind), x, tuple(parameters), dy, self.device)

    def linear(self, x: np.ndarray, parameters: Arrays, dy: np.ndarray) -> Call:
        """Linear, with the gradients of x, weight and bias."""
        leaves, cotangent = self._leaves((x, *parameters)), tn.tensor(dy, device=self.device)

        def both() -> Any:
            for leaf in leaves:
                leaf.grad = None
            tn.functional.linear(*leaves).backward(cotangent)
            return [leaf.grad for leaf in leaves]

        return both

    def step(self, make: Model, x: np.ndarray, labels: np.ndarray) -> Call:
        """A training step; its loss."""
        model = make().to(self.device)
        optimizer = tn.optim.Adam(model, lr=LEARNING_RATE)
        batch, target = tn.tensor(x, device=self.device), tn.tensor(labels, device=self.device)

        def step() -> Any:
            optimizer.zero_grad()
            loss = tn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    def overhead(self, arrays: Arrays) -> Call:
        """(a * b + c).sum() and its gradients."""
        a, b, c = self._leaves(arrays)

        def both() -> Any:
            a.grad = b.grad = c.grad = None
            (a * b + c).sum().backward()
            return [a.grad, b.grad, c.grad]

        return both


class Formulas(Tinynorm):
    """tinynorm without kernels: what a reader of the formulas sees run."""

    name = "formulas"

    def norm(self, kind: str, x: np.ndarray, parameters: Arrays, dy: np.ndarray) -> tuple[Call, Call]:
        """As Tinynorm's."""
        forward, both = super().norm(kind, x, parameters, dy)
        return tn.formulas_only()(forward), tn.formulas_only()(both)

    def linear(self, x: np.ndarray, parameters: Arrays, dy: np.ndarray) -> Call:
        """As Tinynorm's."""
        return tn.formulas_only()(super().linear(x, parameters, dy))

    def step(self, make: Model, x: np.ndarray, labels: np.ndarray) -> Call:
        """As Tinynorm's."""
        return tn.formulas_only()(super().step(make, x, labels))

    def overhead(self, arrays: Arrays) -> Call:
        """As Tinynorm's."""
        return tn.formulas_only()(super().overhead(arrays))


class NumPy:
    """What one writes first, with the backward by hand and no tape."""

    name = "numpy"

    def threads(self, n: int) -> None:
        """NumPy has none of its own."""

    def norm(self, kind: str, x: np.ndarray, parameters: Arrays, dy: np.ndarray) -> tuple[Call, Call]:
        """As Tinynorm's."""
        weight, expression = parameters[0], Expressions(np)

        def both() -> Any:
            c = x - x.mean(axis=-1, keepdims=True) if kind == "layer_norm" else x
            r = 1.0 / np.sqrt((c * c).mean(axis=-1, keepdims=True) + EPS)
            z = c * r
            y = z * weight
            if kind == "layer_norm":
                y = y + parameters[1]
            dz = dy * weight
            dx = r * (dz - z * (dz * z).mean(axis=-1, keepdims=True))
            if kind == "layer_norm":
                dx = dx - (r * dz).mean(axis=-1, keepdims=True)
                return [dx, (dy * z).sum(axis=0), dy.sum(axis=0)]
            return [dx, (dy * z).sum(axis=0)]

        return lambda: getattr(expression, kind)(x, *parameters), both

    def linear(self, x: np.ndarray, parameters: Arrays, dy: np.ndarray) -> Call:
        """As Tinynorm's."""
        weight, bias = parameters

        def both() -> Any:
            x @ weight.T + bias
            return [dy @ weight, dy.T @ x, dy.sum(axis=0)]

        return both

    def overhead(self, arrays: Arrays) -> Call:
        """As Tinynorm's."""
        a, b, c = arrays

        def both() -> Any:
            (a * b + c).sum()
            one = np.ones_like(c)
            return [one * b, one * a, one]

        return both


class Torch:
    """PyTorch, as its own documentation would have one write it: eager, with its default Adam."""

    name = "torch"
    package = "torch"
    fused = False

    def __init__(self, device: str = "cpu") -> None:
        self.torch, self.device = import_module("torch"), device

    def threads(self, n: int) -> None:
        """Use n threads."""
        self.torch.set_num_threads(n)

    def _leaves(self, arrays: Arrays) -> list[Any]:
        return [self.torch.tensor(a, device=self.device, requires_grad=True) for a in arrays]

    def norm(self, kind: str, x: np.ndarray, parameters: Arrays, dy: np.ndarray) -> tuple[Call, Call]:
        """As Tinynorm's."""
        torch, norm, shape = self.torch, getattr(self.torch.nn.functional, kind), (x.shape[-1],)
        leaves, cotangent = self._leaves((x, *parameters)), self.torch.tensor(dy, device=self.device)

        def forward() -> Any:
            with torch.no_grad():
                return norm(leaves[0], shape, *leaves[1:], eps=EPS)

        def both() -> Any:
            for leaf in leaves:
                leaf.grad = None
            norm(leaves[0], shape, *leaves[1:], eps=EPS).backward(cotangent)
            return [leaf.grad for leaf in leaves]

        return forward, both

    def linear(self, x: np.ndarray, parameters: Arrays, dy: np.ndarray) -> Call:
        """As Tinynorm's."""
        linear = self.torch.nn.functional.linear
        leaves, cotangent = self._leaves((x, *parameters)), self.torch.tensor(dy, device=self.device)

        def both() -> Any:
            for leaf in leaves:
                leaf.grad = None
            linear(*leaves).backward(cotangent)
            return [leaf.grad for leaf in leaves]

        return both

    def step(self, make: Model, x: np.ndarray, labels: np.ndarray) -> Call:
        """As Tinynorm's, from the same initial parameters."""
        torch, f, model = self.torch, self.torch.nn.functional, make()
        parameters = self._leaves([p.numpy() for p in model.parameters()])
        optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=self.fused or None)
        batch, target = (torch.tensor(a, device=self.device) for a in (x, labels))
        width, blocks, eps = model.embed.weight.shape[0], len(model.blocks), model.norm.eps
        del model  # its memory is not PyTorch's

        def step() -> Any:
            optimizer.zero_grad()
            p = iter(parameters)
            h = f.linear(batch, next(p), next(p))
            for _ in range(blocks):
                hidden = f.linear(f.rms_norm(h, (width,), next(p), eps), next(p), next(p))
                h = h + f.linear(f.relu(hidden), next(p), next(p))
            loss = f.cross_entropy(f.linear(f.rms_norm(h, (width,), next(p), eps), next(p), next(p)), target)
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    def overhead(self, arrays: Arrays) -> Call:
        """As Tinynorm's."""
        a, b, c = self._leaves(arrays)

        def both() -> Any:
            a.grad = b.grad = c.grad = None
            (a * b + c).sum().backward()
            return [a.grad, b.grad, c.grad]

        return both


class TorchFused:
    """PyTorch with its fused Adam, which only a training step sees."""

    name = "torch fused"
    package = "torch"

    def __init__(self, device: str = "cpu") -> None:
        self.plain = Torch(device)
        self.plain.fused = True

    def threads(self, n: int) -> None:
        """Use n threads."""
        self.plain.threads(n)

    def step(self, make: Model, x: np.ndarray, labels: np.ndarray) -> Call:
        """As Torch's."""
        return self.plain.step(make, x, labels)


class Expressions:
    """First-try expressions in terms of an array module, for libraries that offer NumPy's names and derivatives."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.eps = np.float32(EPS)  # MyGrad takes a Python float for a float64

    def rms_norm(self, x: Any, weight: Any, eps: Any = None) -> Any:
        """x / √(mean(x²) + ε) · g"""
        eps = self.eps if eps is None else eps
        return x / self.xp.sqrt(self.xp.mean(x * x, axis=-1, keepdims=True) + eps) * weight

    def layer_norm(self, x: Any, weight: Any, bias: Any) -> Any:
        """The same of x − mean(x), plus b."""
        return self.rms_norm(x - self.xp.mean(x, axis=-1, keepdims=True), weight) + bias

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """x Wᵀ + b"""
        return self.layer(x, weight.T, bias)

    def layer(self, x: Any, weight: Any, bias: Any) -> Any:
        """x W + b, with W as these libraries' own layers keep it: (in, out)."""
        return self.xp.matmul(x, weight) + bias

    def overhead(self, a: Any, b: Any, c: Any) -> Any:
        """(a b + c).sum()"""
        return self.xp.sum(a * b + c)

    def loss(self, x: Any, chosen: Any, blocks: int, eps: np.float32, *parameters: Any) -> Any:
        """The pre-norm MLP and its cross-entropy; `chosen` has a one in each row, at its class."""
        p, xp = iter(parameters), self.xp
        h = self.layer(x, next(p), next(p))
        for _ in range(blocks):
            hidden = self.layer(self.rms_norm(h, next(p), eps), next(p), next(p))
            h = h + self.layer(xp.maximum(hidden, np.float32(0)), next(p), next(p))
        z = self.layer(self.rms_norm(h, next(p), eps), next(p), next(p))
        return xp.mean(xp.log(xp.sum(xp.exp(z), axis=-1)) - xp.sum(z * chosen, axis=-1))


class Differentiated:
    """A library that differentiates `Expressions`. `pull` gives what one writes in it for value and gradients."""

    name: str
    package: str
    xp: Any

    def threads(self, n: int) -> None:
        """It has none of its own, or takes those that it finds."""

    def pull(self, function: Call, arrays: Arrays, dy: Any) -> Callable[[Arrays], tuple[Any, list[Any]]]:
        """A function of arrays: the value of the expression, and its gradients for the cotangent dy.

        It is always called with these arrays, whose numbers may have changed: leaves can be made once, over them.
        """
        raise NotImplementedError

    def _both(self, function: Call, arrays: Arrays, dy: Any) -> Call:
        pulled = self.pull(function, arrays, dy)
        return lambda: pulled(arrays)[1]

    def norm(self, kind: str, x: np.ndarray, parameters: Arrays, dy: np.ndarray) -> tuple[Call, Call]:
        """As Tinynorm's."""
        function, arrays = getattr(Expressions(self.xp), kind), (x, *parameters)
        return lambda: function(*arrays), self._both(function, arrays, dy)

    def linear(self, x: np.ndarray, parameters: Arrays, dy: np.ndarray) -> Call:
        """As Tinynorm's."""
        return self._both(Expressions(self.xp).linear, (x, *parameters), dy)

    def overhead(self, arrays: Arrays) -> Call:
        """As Tinynorm's."""
        return self._both(Expressions(self.xp).overhead, arrays, np.float32(1))

    def step(self, make: Model, x: np.ndarray, labels: np.ndarray) -> Call:
        """As Tinynorm's, with Adam in NumPy."""
        loss, parameters = self.starting(make, x, labels)
        moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]
        pulled, steps = self.pull(loss, parameters, np.float32(1)), count(1)

        def step() -> float:
            value, gradients = pulled(parameters)
            t = next(steps)
            for p, g, moment in zip(parameters, gradients, moments, strict=True):
                for old, new in zip((p, *moment), adam(p, g, *moment, t, np), strict=True):
                    old[...] = new
            return float(value)

        return step

    def starting(self, make: Model, x: np.ndarray, labels: np.ndarray) -> tuple[Call, list[np.ndarray]]:
        """The loss as a function of parameters, and these."""
        model = make()
        chosen, eps = np.eye(model.head.weight.shape[0], dtype=np.float32)[labels], np.float32(model.norm.eps)
        loss = partial(Expressions(self.xp).loss, x, chosen, len(model.blocks), eps)
        return loss, [p.numpy().T.copy() for p in model.parameters()]


def adam(p: Any, g: Any, m: Any, v: Any, t: Any, xp: Any) -> tuple[Any, Any, Any]:
    """A step of Adam as one writes it first: the new parameter and moments."""
    m = m + 0.1 * (g - m)
    v = v + 0.001 * (g * g - v)
    return p - LEARNING_RATE / (1 - 0.9**t) * m / (xp.sqrt(v / (1 - 0.999**t)) + 1e-8), m, v


class Autograd(Differentiated):
    """HIPS autograd."""

    name = package = "autograd"

    def __init__(self) -> None:
        self.xp = import_module("autograd.numpy")

    def pull(self, function: Call, arrays: Arrays, dy: Any) -> Callable[[Arrays], tuple[Any, list[Any]]]:
        """With make_vjp."""
        make_vjp = import_module("autograd").make_vjp

        def pulled(values: Arrays) -> tuple[Any, list[Any]]:
            backward, y = make_vjp(lambda every: function(*every))(tuple(values))
            return y, list(backward(dy))

        return pulled


class MyGrad(Differentiated):
    """MyGrad, without its guard against changed arrays, which its manual has one switch off for speed."""

    name = package = "mygrad"

    def __init__(self) -> None:
        self.xp = import_module("mygrad")
        self.xp.turn_memory_guarding_off()

    def pull(self, function: Call, arrays: Arrays, dy: Any) -> Callable[[Arrays], tuple[Any, list[Any]]]:
        """With Tensor.backward. A tensor that is used anew forgets its gradient."""
        leaves = [self.xp.tensor(a, copy=False) for a in arrays]

        def pulled(values: Arrays) -> tuple[Any, list[Any]]:
            y = function(*leaves)
            y.backward(dy)
            return y, [leaf.grad for leaf in leaves]

        return pulled

    def norm(self, kind: str, x: np.ndarray, parameters: Arrays, dy: np.ndarray) -> tuple[Call, Call]:
        """As Tinynorm's."""
        forward, both = super().norm(kind, x, parameters, dy)
        return self.xp.no_autodiff(forward), both


class DeZero(Differentiated):
    """DeZero, with NumPy's names for its functions. A NumPy scalar where a Python float would make it float64."""

    name = package = "dezero"

    def __init__(self) -> None:
        vars(np).setdefault("int", int)  # DeZero was written for a NumPy that had it
        self.dezero, f = import_module("dezero"), import_module("dezero.functions")

        def mean(x: Any, axis: int = 0, keepdims: bool = False) -> Any:
            total = f.sum(x, axis=axis % x.ndim, keepdims=keepdims)
            return total * np.float32(total.size / x.size)

        self.xp = SimpleNamespace(
            mean=mean, sqrt=lambda x: x ** np.float32(0.5), matmul=f.matmul, exp=f.exp, log=f.log,
            maximum=lambda x, zero: f.relu(x), sum=lambda x, axis=None: f.sum(x, axis and axis % x.ndim),
        )  # fmt: skip

    def pull(self, function: Call, arrays: Arrays, dy: Any) -> Callable[[Arrays], tuple[Any, list[Any]]]:
        """With Variable.backward, which starts from ones where no cotangent is set."""
        leaves, cotangent = [self.dezero.Variable(a) for a in arrays], self.dezero.Variable(np.asarray(dy))

        def pulled(values: Arrays) -> tuple[Any, list[Any]]:
            for leaf in leaves:
                leaf.cleargrad()
            y = function(*leaves)
            y.grad = cotangent
            y.backward()
            return y.data, [leaf.grad.data for leaf in leaves]

        return pulled

    def norm(self, kind: str, x: np.ndarray, parameters: Arrays, dy: np.ndarray) -> tuple[Call, Call]:
        """As Tinynorm's."""
        function, variables = getattr(Expressions(self.xp), kind), [self.dezero.Variable(a) for a in (x, *parameters)]

        def forward() -> Any:
            with self.dezero.no_grad():
                return function(*variables).data

        return forward, super().norm(kind, x, parameters, dy)[1]


class PyDyNet(Differentiated):
    """PyDyNet."""

    name = package = "pydynet"

    def __init__(self) -> None:
        with catch_warnings():
            simplefilter("ignore", UserWarning)  # that CuPy is not installed
            self.xp = import_module("pydynet")

    def pull(self, function: Call, arrays: Arrays, dy: Any) -> Callable[[Arrays], tuple[Any, list[Any]]]:
        """With Tensor.backward, which starts from a single element: a cotangent is multiplied and summed."""
        leaves = [self.xp.Tensor(a, a.dtype, copy=None, requires_grad=True) for a in arrays]
        cotangent = self.xp.Tensor(dy)

        def pulled(values: Arrays) -> tuple[Any, list[Any]]:
            for leaf in leaves:
                leaf.zero_grad()
            y = function(*leaves)
            (y if cotangent.ndim == 0 else (y * cotangent).sum()).backward()
            return y.data, [leaf.grad for leaf in leaves]

        return pulled

    def norm(self, kind: str, x: np.ndarray, parameters: Arrays, dy: np.ndarray) -> tuple[Call, Call]:
        """As Tinynorm's."""
        function, tensors = getattr(Expressions(self.xp), kind), [self.xp.Tensor(a) for a in (x, *parameters)]

        def forward() -> Any:
            with self.xp.no_grad():
                return function(*tensors).data

        return forward, super().norm(kind, x, parameters, dy)[1]


class Jax(Differentiated):
    """JAX, compiled."""

    name = package = "jax"

    def __init__(self) -> None:
        self.jax, self.xp = import_module("jax"), import_module("jax.numpy")

    def pull(self, function: Call, arrays: Arrays, dy: Any) -> Callable[[Arrays], tuple[Any, list[Any]]]:
        """With vjp and jit."""

        def pulled(values: Any) -> Any:
            y, backward = self.jax.vjp(function, *values)
            return y, list(backward(self.xp.asarray(dy, y.dtype)))

        compiled = self.jax.jit(pulled)
        return lambda values: self.jax.block_until_ready(compiled(tuple(values)))

    def _both(self, function: Call, arrays: Arrays, dy: Any) -> Call:
        return super()._both(function, [self.jax.device_put(a) for a in arrays], dy)

    def norm(self, kind: str, x: np.ndarray, parameters: Arrays, dy: np.ndarray) -> tuple[Call, Call]:
        """As Tinynorm's."""
        arrays = [self.jax.device_put(a) for a in (x, *parameters)]
        function = self.jax.jit(getattr(Expressions(self.xp), kind))
        return lambda: function(*arrays).block_until_ready(), super().norm(kind, x, parameters, dy)[1]

    def step(self, make: Model, x: np.ndarray, labels: np.ndarray) -> Call:
        """As Tinynorm's, loss, gradients and Adam compiled as one."""
        loss, parameters = self.starting(make, x, labels)
        state = [[self.xp.array(p), self.xp.zeros_like(p), self.xp.zeros_like(p)] for p in parameters]

        def advance(state: Any, t: Any) -> Any:
            value, gradients = self.jax.value_and_grad(lambda values: loss(*values))([p for p, _, _ in state])
            return value, [list(adam(p, g, m, v, t, self.xp)) for (p, m, v), g in zip(state, gradients, strict=True)]

        compiled, steps = self.jax.jit(advance, donate_argnums=0), count(1)

        def step() -> float:
            nonlocal state
            value, state = compiled(state, float(next(steps)))
            return float(value)

        return step


OWN: tuple[Any, ...] = (Tinynorm, Formulas, NumPy)  # in every process
PEERS: dict[str, tuple[Any, ...]] = {
    "torch": (Torch, TorchFused), "jax": (Jax,), "mygrad": (MyGrad,), "pydynet": (PyDyNet,), "dezero": (DeZero,),
    "autograd": (Autograd,),
}  # fmt: skip
"""What `--against` names: the contestants of a library."""


def all_of(peer: str) -> list[Any]:
    """tinynorm and NumPy, and the library's own."""
    return [kind() for kind in (*OWN, *PEERS.get(peer, ()))]


def on_gpu(peer: str) -> list[Any]:
    """tinynorm with and without kernels, and PyTorch where it is asked for and has a GPU as well."""
    torch = PEERS["torch"] if peer == "torch" and import_module("torch").cuda.is_available() else ()
    return [kind("cuda") for kind in (Tinynorm, Formulas, *torch)]


def named(name: str) -> Any:
    """One contestant."""
    (kind,) = [kind for kinds in (OWN, *PEERS.values()) for kind in kinds if kind.name == name]
    return kind()
