"""A device that runs out of memory, or is gone: what is said of it, and that nothing is left half-done.

The stand-in refuses an allocation or a kernel when it is asked to, and so does the real CuPy on the CPU.
"""

import contextlib
import copy
import sys

import numpy as np
import pytest

import tinynorm as tn
from tinynorm.errors import DeviceError, OutOfMemoryError

F = tn.functional


@pytest.fixture
def refuse(cupy):
    """Contexts in which the n-th new array from here on finds no memory, or the n-th kernel no device."""

    @contextlib.contextmanager
    def of_the_stand_in(what, nth):
        getattr(cupy.machine, f"fail_{what}")(nth)
        try:
            yield
        finally:
            getattr(cupy.machine, f"fail_{what}")(10**9)
            cupy.machine.recover()

    def of_the_real_one(what, nth):
        import cupy_on_cpu

        return {"allocation": cupy_on_cpu.out_of_memory, "launch": cupy_on_cpu.failing_launch}[what](nth - 1)

    if hasattr(cupy, "machine"):
        return of_the_stand_in
    if "cupy_on_cpu" not in sys.modules:
        pytest.skip("a GPU fails when it likes")
    return of_the_real_one


def turns(cupy, last):
    """Which of so many to refuse: all of them, one after another, where a call takes microseconds."""
    return range(1, last + 1) if hasattr(cupy, "machine") else sorted({1, 2, last // 2, last - 1, last})


def bits(tensors):
    """What the parameters and their gradients are, to the last bit, and where."""
    return [
        (t.device, t.numpy().tobytes(), None if t.grad is None else tn.as_tensor(t.grad).numpy().tobytes())
        for t in tensors
    ]


class Step:
    """A training step of a small model, whose parameters have gradients already that the step adds to."""

    def __init__(self):
        rng = np.random.default_rng(0)
        layers = (tn.nn.Linear(5, 4, rng=0), tn.nn.RMSNorm(4), tn.nn.GELU(), tn.nn.Dropout(0.2, rng=0))
        self.model = tn.nn.Sequential(*layers, tn.nn.Linear(4, 3, rng=0)).to("cuda")
        self.x = tn.tensor(rng.normal(size=(6, 5)).astype(np.float32), device="cuda")
        self.classes = tn.tensor(np.arange(6) % 3, device="cuda")
        self.parameters = list(self.model.parameters())

    def __call__(self):
        self.model[3].rng = np.random.default_rng(0)
        F.cross_entropy(self.model(self.x), self.classes).backward()


def counted(cupy, what, call):
    """How many allocations or launches a call makes; on the real CuPy, whose counts are others, a guess for some."""
    if not hasattr(cupy, "machine"):
        call()
        return 40
    attribute = {"allocation": "allocations", "launch": "launches"}[what]
    before = getattr(cupy.machine, attribute)
    call()
    return getattr(cupy.machine, attribute) - before


@pytest.mark.parametrize("what", ["allocation", "launch"])
def test_a_step_that_fails_anywhere_leaves_parameters_and_gradients_as_they_were(cupy, refuse, what):
    step = Step()
    last = counted(cupy, what, step)
    before = bits(step.parameters)
    for nth in turns(cupy, last):
        with pytest.raises(OutOfMemoryError if what == "allocation" else DeviceError), refuse(what, nth):
            step()
        assert bits(step.parameters) == before, f"{what} {nth} of {last}"
    step()
    twice = bits(step.parameters)
    assert twice != before
    for p in step.parameters:
        p.grad = None
    step(), step()
    assert bits(step.parameters) == twice


def move(model):
    model.to("cuda")


def load(model):
    model.load_state_dict(tn.nn.PreNormMLP(5, 4, 1, 3, rng=1).state_dict())


@pytest.mark.parametrize("change", [move, load])
@pytest.mark.parametrize("home", ["cpu", "cuda:0"])
def test_a_model_moves_or_loads_as_a_whole_or_not_at_all(cupy, refuse, change, home):
    def fresh():
        model = tn.nn.PreNormMLP(5, 4, depth=1, out_features=3, rng=0, device=home)
        model(tn.tensor(np.ones((2, 5), np.float32), device=home)).sum().backward()
        return model

    model = fresh()
    last = counted(cupy, "allocation", lambda: change(model))
    if hasattr(cupy, "machine"):
        assert (last > 0) == ((change, home) in [(move, "cpu"), (load, "cuda:0")])
    model = fresh()
    before, arrays = bits(model.parameters()), [p._data for p in model.parameters()]
    for nth in turns(cupy, last) if last else ():
        with contextlib.suppress(OutOfMemoryError), refuse("allocation", nth):
            change(model)
            continue  # on the real CuPy, where the number of allocations is a guess
        assert bits(model.parameters()) == before
        assert all(p._data is array for p, array in zip(model.parameters(), arrays, strict=True))


def test_a_deep_copy_finds_no_memory(cupy, refuse):
    model = tn.nn.Linear(2, 2, device="cuda")
    model(tn.tensor([[1.0, 2.0]], device="cuda")).sum().backward()
    last = counted(cupy, "allocation", lambda: copy.deepcopy(model)) if hasattr(cupy, "machine") else 4
    assert last == 4  # two parameters and their gradients, each copied once
    for nth in range(1, last + 1):
        with pytest.raises(OutOfMemoryError), refuse("allocation", nth):
            copy.deepcopy(model)


MESSAGES = {
    "a copy": lambda t: tn.tensor(np.zeros((64, 64)), device="cuda"),
    "exp": tn.exp,
    "add": lambda t: t + 1.0,
    "backward: exp": lambda t: tn.exp(t),
    "backward: multiply": lambda t: t * t,
}


@pytest.mark.parametrize("name", MESSAGES)
def test_out_of_memory_says_what_asked_for_how_much_and_what_is_free(cupy, refuse, name):
    t = tn.tensor(np.ones((64, 64)), device="cuda", requires_grad=True)
    dy = tn.tensor(np.ones((64, 64)), device="cuda")
    y = MESSAGES[name](t) if "backward" in name else None
    with pytest.raises(OutOfMemoryError) as caught, refuse("allocation", 1):
        MESSAGES[name](t) if y is None else y.backward(dy)
    message = str(caught.value)
    assert message.startswith(f"{name}")
    for words in (
        "'cuda:0' is out of memory: asked for 32.0 KiB, ",
        " GiB are free. Take smaller",
        "CuPy says: Out of",
    ):
        assert words in message
    assert isinstance(caught.value, MemoryError)
    assert t.grad is None


def test_a_device_that_is_gone_is_told_with_cupys_words(cupy, refuse):
    t = tn.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    with (
        pytest.raises(
            DeviceError, match=r"^exp: 'cuda:0' failed\. What lies there is lost .* CuPy says: (?i:cuda_?error)"
        ),
        refuse("launch", 1),
    ):
        tn.exp(t)
    y = tn.exp(t)
    with pytest.raises(DeviceError, match=r"^backward.*: 'cuda:0' failed") as caught, refuse("launch", 1):
        y.backward(t.detach())
    assert not isinstance(caught.value, MemoryError)
    assert t.grad is None


def test_a_device_that_is_gone_is_told_where_one_is_looked_for_too(cupy, refuse):
    if not hasattr(cupy, "machine"):
        pytest.skip("here only kernels fail")
    t = tn.tensor([1.0], device="cuda")
    with refuse("launch", 1):
        for call in (lambda: tn.exp(t), lambda: t.numpy(), lambda: t.item(), lambda: t.to("cuda:1"), lambda: repr(t)):
            with pytest.raises(DeviceError, match=r"'cuda:?\d?' failed\. What lies there is lost"):
                call()


class DynamicLibNotFoundError(RuntimeError):
    """As that of cuda.pathfinder, by which CuPy looks for CUDA's libraries."""


@pytest.mark.parametrize("imported", [False, True])
def test_a_library_that_is_missing_is_told_with_what_to_install(cupy, monkeypatch, imported):
    """As for NVRTC, and as for cuBLAS."""
    t = tn.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    y = tn.exp(t)

    def missing(*arguments, **options):
        error = DynamicLibNotFoundError("Failure finding libnvrtc.so.13")
        if imported:
            raise ImportError(str(error)) from error
        raise error

    monkeypatch.setattr(cupy, "exp", missing)
    monkeypatch.setattr(cupy, "ones", missing)
    for name, call in {"exp": lambda: tn.exp(t), "backward": lambda: y[0].backward()}.items():
        words = rf"^{name}: CuPy finds one of .*pip install 'tinynorm\[cuda13\]'.* CuPy says: Failure finding libnvrtc"
        with pytest.raises(DeviceError, match=words):
            call()


def test_what_the_error_hides_is_its_cause(cupy, refuse):
    with pytest.raises(OutOfMemoryError) as caught, refuse("allocation", 1):
        tn.tensor([1.0], device="cuda")
    assert isinstance(caught.value.__cause__, cupy.cuda.memory.OutOfMemoryError)


def test_a_derivative_that_finds_no_memory_is_not_the_formulas_fault(cupy, refuse):
    t = tn.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    y = tn.exp(t).sum()
    for nth in turns(cupy, counted(cupy, "allocation", lambda: tn.grad(y, t, create_graph=True))):
        with contextlib.suppress(OutOfMemoryError), refuse("allocation", nth):
            tn.grad(y, t, create_graph=True)
    assert t.grad is None
