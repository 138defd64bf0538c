"""tn.inspect: what explain, draw and scales say of a computation, and that they leave it as it was."""

import linecache
import re
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
import strict_cupy

import tinynorm as tn
from tinynorm.errors import ArgumentError, DTypeError, GraphError, MissingExtraError, OutOfRangeError, ShapeError
from tinynorm.inspect import draw, explain, scales
from tinynorm.kernels import norms as norm_kernels
from tinynorm.watch import watching

F = tn.functional


@pytest.fixture(autouse=True)
def nobody_watches_on():
    yield
    assert watching() is None


@pytest.fixture
def rng():
    return np.random.default_rng(20261130)


def mlp(**options):
    return tn.nn.PreNormMLP(6, 8, 2, 3, rng=0, **options)


def batch(rng):
    return rng.normal(size=(5, 6)).astype(np.float32), rng.integers(0, 3, 5)


def line_at(place):
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line)).strip()


# explain


def test_cotangents_shapes_and_order_are_those_found_by_hand():
    """ℒ = Σ u s with s = a b and a = x − 3, u = (1, −2): s̄ = u, ā = u b."""
    x = tn.tensor([4.0, 5.0], requires_grad=True)
    a = x - 3.0
    s = a * np.array([2.0, -0.5], np.float32)
    rows = explain((s * np.array([1.0, -2.0], np.float32)).sum()).rows
    assert [row.name for row in rows] == ["subtract", "multiply", "multiply", "sum"]
    assert [row.cotangent for row in rows] == pytest.approx([5**0.5, 5**0.5, 2**0.5, 1.0], rel=1e-6)
    assert [row.inputs[0].shape for row in rows] == [(2,)] * 4
    assert [len(row.inputs) for row in rows] == [1, 2, 2, 1]
    assert rows[-1].result == ((), np.float32)
    assert all(row.forward > 0 and row.backward > 0 for row in rows)


def test_operands_run_before_what_they_go_into_and_the_first_first():
    x = tn.tensor([1.0, 2.0], requires_grad=True)
    y = tn.sin(tn.exp(x) * 2.0) + tn.tanh(tn.sqrt(x))
    assert [row.name for row in explain(y).rows] == ["exp", "multiply", "sin", "sqrt", "tanh", "add"]


def test_the_places_are_those_of_the_formulas():
    x = tn.tensor([[3.0, 4.0]], requires_grad=True)
    (row,) = explain(F.rms_norm(x, 2)).rows
    assert line_at(row.formula.forward).startswith("def rms_norm(")
    assert line_at(row.formula.backward).startswith("def rms_norm_backward(")
    assert line_at(row.kernel.forward).startswith("def _rms_forward(")
    assert line_at(row.kernel.backward).startswith("def _rms_backward(")
    with tn.formulas_only():
        y = F.rms_norm(x, 2)
    assert explain(y).rows[0].kernel is None


def test_an_operation_of_the_users_own_is_in_the_users_file():
    @tn.op("cube")
    def cube(xp, x):
        return x * x * x, x

    @cube.backward
    def cube_backward(xp, dy, x):
        return dy * (3.0 * x * x)

    table = explain(cube(tn.tensor([1.0, 2.0], requires_grad=True)))
    assert table.rows[0].formula.forward.startswith(f"{__file__}:")
    assert line_at(table.rows[0].formula.forward) == '@tn.op("cube")'
    assert line_at(table.rows[0].formula.backward) == "@cube.backward"
    assert "test_inspect.py:" in str(table)


def test_bytes_count_once_and_not_for_what_belongs_to_leaves():
    x = tn.tensor(np.ones(1000, np.float64), requires_grad=True)
    h = tn.exp(x)  # keeps its result
    rows = explain((h * h * x).sum()).rows  # h again; h · h, and x, which is a leaf's
    assert [row.cache for row in rows] == [8000, 0, 8000, 0]
    constant = np.ones(1000)
    assert [row.cache for row in explain(x * constant).rows] == [8000]
    view = tn.exp(tn.tensor(np.ones((1000, 2)), requires_grad=True))[:, 0]
    assert explain(view * view).rows[-1].cache == 0  # what exp has kept already
    large = tn.exp(tn.tanh(tn.tensor(np.ones(10_000, np.float32), requires_grad=True)))
    assert [row.cache for row in explain(large).rows] == [40_000, 40_000]  # in blocks, which are a little longer


def test_a_module_is_run_once_and_its_operations_have_its_names(rng):
    model, (x, _) = mlp(), batch(rng)
    rows = explain(model, x).rows
    block = ["norm", "body.0", "body.1", "body.2", ""]
    inside = [f"blocks.{i}{'.' if name else ''}{name}" for i in range(2) for name in block]
    assert [row.module for row in rows] == ["embed", *inside, "norm", "head"]
    assert rows[0].inputs == (((5, 6), np.float32), ((8, 6), np.float32), ((8,), np.float32))
    assert rows[0].cache == 0  # the input is there anyway
    assert rows[2].cache == 5 * 8 * 4  # the norm's result, for the gradient of the weight


def test_the_random_cotangent_is_one_for_which_a_norm_has_a_gradient(rng):
    x = tn.tensor(rng.normal(size=(4, 8)), requires_grad=True)
    y = F.layer_norm(x * 1.0, 8)
    first, again = explain(y), explain(y)
    assert first.rows[0].cotangent > 0.1  # for ones it would be 0
    assert [row.cotangent for row in first.rows] == [row.cotangent for row in again.rows]
    assert "normally distributed" in first.title
    assert "its cotangent 1" in explain(y.sum()).title


def test_nothing_is_changed(rng):
    model, (x, y) = mlp(), batch(rng)
    loss = F.cross_entropy(model(x), y)
    before = model.state_dict()
    explain(loss)
    explain(model, x)
    draw(loss)
    scales(model, (x, y))
    assert all(p.grad is None for p in model.parameters())
    assert all(np.array_equal(before[name], value) for name, value in model.state_dict().items())
    loss.backward()
    known = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    assert all(np.array_equal(known[name], p.grad) for name, p in model.named_parameters())


@pytest.mark.parametrize("look", [lambda model, x: explain(model, x), lambda model, x: scales(model, x)])
def test_dropout_draws_once(look):
    x = np.ones((3, 6), np.float32)
    looked, called = (tn.nn.Sequential(tn.nn.Linear(6, 4, rng=0), tn.nn.Dropout(0.5, rng=7)) for _ in range(2))
    look(looked, x)
    called(x)
    assert np.array_equal(looked(x).numpy(), called(x).numpy())


def test_inputs_with_a_history_and_several_of_them(rng):
    class Sum(tn.nn.Module):
        def forward(self, a, b):
            return tn.exp(a) + b

    a = tn.tensor(rng.normal(size=3), requires_grad=True)
    rows = explain(Sum(), (a * 2.0, rng.normal(size=3))).rows
    assert [row.name for row in rows] == ["exp", "add"]
    with tn.no_grad():
        assert [row.name for row in explain(Sum(), (a, 1.0)).rows] == ["exp", "add"]


def test_tied_modules_have_the_first_name():
    layer = tn.nn.Linear(3, 3, rng=0)
    rows = explain(tn.nn.Sequential(layer, tn.nn.ReLU(), layer), np.ones((2, 3), np.float32)).rows
    assert [row.module for row in rows] == ["0", "1", "0"]


def test_other_dtypes_are_named():
    half = tn.tensor(np.ones((2, 3), np.float16), requires_grad=True)
    table = explain((half * 2.0).astype(np.float32).sum() * 3.0)
    assert table.rows[0].result == ((2, 3), np.float16)
    assert "float16 2×3 → 2×3\n" in re.sub(" +", " ", re.sub(r"→ (\S+).*\n", r"→ \1\n", str(table)))


def test_the_text_is_a_table_of_at_most_120_columns(rng):
    lines = str(explain(mlp(), batch(rng)[0])).splitlines()
    assert max(map(len, lines)) <= 120
    assert lines[2].split() == [
        "operation", "module", "formula", "inputs", "→", "result", "‖ȳ‖", "kept", "forward", "backward",
    ]  # fmt: skip
    assert re.fullmatch(
        r"linear\* +embed +linear\.py:\d+, \d+ +5×6, 8×6, 8 → 5×8 +\S+ +0 B +\S+ [µm]?s +\S+ [µm]?s", lines[3]
    )
    assert lines[16].startswith("total ")
    kernels = " ".join(lines[lines.index("", 4) :])
    (line,) = re.findall(r"rms_norm kernels/norms\.py:(\d+), \d+", kernels)
    assert linecache.getline(norm_kernels.__file__, int(line)).startswith("def _rms_forward(")


def test_many_inputs_are_cut_short():
    parts = [tn.tensor([1.0], requires_grad=True) for _ in range(30)]
    assert "1, … 28 more …, 1 → 30" in str(explain(tn.concatenate(parts)))


@pytest.mark.parametrize(
    ("arguments", "error", "fragment"),
    [
        (lambda: (tn.tensor([1.0]),), GraphError, "explain: this tensor has no graph"),
        (lambda: (tn.tensor([1.0], requires_grad=True),), GraphError, "is a leaf"),
        (lambda: (tn.tensor([1.0], requires_grad=True) * 2.0, [1.0]), ArgumentError, "only a module"),
        (lambda: (mlp(),), ArgumentError, "needs an input="),
        (lambda: (tn.nn.ReLU(), [1.0]), GraphError, "explain: this tensor has no graph"),
        (lambda: (tn.nn.Identity(), tn.tensor([1.0], requires_grad=True)), GraphError, "is a leaf"),
        (lambda: (3.0,), DTypeError, "explain: there must be one Tensor to look at, not a float"),
    ],
)
def test_what_cannot_be_explained(arguments, error, fragment):
    with pytest.raises(error, match=fragment):
        explain(*arguments())


@pytest.mark.parametrize("look", [explain, draw])
def test_a_freed_graph_is_refused(look):
    y = (tn.tensor([1.0], requires_grad=True) * 2.0).sum()
    y.backward()
    with pytest.raises(GraphError, match="freed"):
        look(y)


def test_a_changed_array_is_refused():
    x = tn.tensor([1.0], requires_grad=True)
    y = tn.exp(x * 1.0) * x
    x.data[0] = 2.0
    with pytest.raises(GraphError, match="changed"):
        explain(y)


def test_on_a_device(monkeypatch):
    strict_cupy.install(monkeypatch)
    model, x = mlp(device="cuda:1"), tn.tensor(np.ones((2, 6), np.float32), device="cuda:1")
    waited = []
    monkeypatch.setattr(strict_cupy.device.Device, "synchronize", lambda device: waited.append(device.id))
    rows = explain(model, x).rows
    assert len(rows) == 13
    assert set(waited) == {1}
    assert all(row.kernel is None for row in rows)
    assert [row.name for row in scales(model, (x, tn.tensor([0, 2], device="cuda:1")))][-1] == "head"


# draw


def test_the_text_of_a_small_graph():
    w, x = tn.tensor([1.0, 2.0], requires_grad=True), np.array([3.0, 4.0], np.float16)
    text = draw((w * x - 2.0).sum(), names={"w": w, "other": tn.tensor(1.0)})
    edges = [line.strip() for line in text.splitlines() if "->" in line]
    assert edges == [
        'a0 -> n0 [label="2"]',
        'a1 -> n0 [label="float16 2"]',
        'n0 -> n1 [label="2"]',
        "a2 -> n1",
        'n1 -> n2 [label="2"]',
        'n2 -> result [label="()"]',
    ]
    labels = dict(re.findall(r'^  (\w+) \[label="(.*?)"', text, re.MULTILINE))
    assert labels == {
        "a0": "w", "a1": "constant", "a2": "2.0", "n0": "multiply", "n1": "subtract", "n2": "sum", "result": "result",
    }  # fmt: skip
    assert text == draw((w * x - 2.0).sum(), names={"w": w})
    assert isinstance(text, str)
    assert repr(text) == text


def test_parameters_have_the_names_that_the_module_gives(rng):
    model, (x, y) = mlp(), batch(rng)
    text = draw(F.cross_entropy(model(x), y), names=model)
    for name, _ in model.named_parameters():
        assert f'[label="{name}"' in text
    assert '"leaf"' not in text
    assert '[label="leaf"' in draw(tn.tensor([1.0], requires_grad=True))


def test_names_that_dot_would_take_for_something_else():
    name = 'a "quoted" \\N\n]; bad'

    @tn.op(name)
    def odd(xp, x):
        return x * 1.0, None

    w = tn.tensor([1.0], requires_grad=True)
    text = draw(odd(w), names={name: w})
    assert '[label="a \\"quoted\\" \\\\N\\n]; bad"' in text
    if shutil.which("dot"):
        shown = ElementTree.fromstring(text._repr_svg_())
        words = [t.text for t in shown.iter("{http://www.w3.org/2000/svg}text")]
        assert words.count('a "quoted" \\N') == 2


def test_a_very_deep_graph():
    y = tn.tensor([1.0], requires_grad=True)
    for _ in range(10_000):
        y = y + 1.0
    text = draw(y)
    assert text.count('label="add"') == 10_000
    assert text._repr_svg_() is None  # which would take minutes


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_pictures(tmp_path):
    y = tn.tensor([1.0], requires_grad=True) * 2.0
    draw(y, file=tmp_path / "graph.svg")
    draw(y, file=str(tmp_path / "graph.png"))
    ElementTree.parse(tmp_path / "graph.svg")
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ArgumentError, match=r"dot cannot make a \.docx"):
        draw(y, file=tmp_path / "graph.docx")


def test_files(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    y = tn.tensor([1.0], requires_grad=True) * 2.0
    text = draw(y, file=tmp_path / "graph.dot")
    assert (tmp_path / "graph.dot").read_text(encoding="utf-8") == text
    assert text._repr_svg_() is None
    with pytest.raises(MissingExtraError, match="apt install graphviz"):
        draw(y, file=tmp_path / "graph.svg")
    with pytest.raises(ArgumentError, match="suffix"):
        draw(y, file=tmp_path / "graph")
    with pytest.raises(FileNotFoundError):
        draw(y, file=tmp_path / "nowhere" / "graph.gv")
    with pytest.raises(GraphError, match="draw: this tensor has no graph"):
        draw(tn.tensor([1.0]))
    with pytest.raises(DTypeError, match="names must be"):
        draw(y, names=["w"])


# scales


def rms(a):
    return float(np.sqrt(np.mean(np.square(a, dtype=np.float64))))


def by_probes(stages, x, loss):
    """The gradient of something inside is that of a leaf of zeros that is added there."""
    h, probes, found = x, [], []
    for stage in stages:
        h = stage(h)
        probes.append(tn.tensor(np.zeros(h.shape, h.dtype), requires_grad=True))
        h = h + probes[-1]
        found.append(rms(h.numpy()))
    loss(h).backward()
    return found, [rms(probe.grad) for probe in probes]


@pytest.mark.parametrize("norm", ["rms", "layer", "none"])
def test_scales_are_those_that_probes_find(norm, rng):
    model, (x, y) = mlp(norm=norm), batch(rng)
    rows = scales(model, (x, y))
    assert [row.name for row in rows] == ["embed", "blocks.0", "blocks.1", "norm", "head"]
    stages = [model.embed, *model.blocks, model.norm, model.head]
    activations, gradients = by_probes(stages, x, lambda h: F.cross_entropy(h, y))
    assert [row.activation for row in rows] == pytest.approx(activations, rel=1e-6)
    assert [row.gradient for row in rows] == pytest.approx(gradients, rel=1e-5)


def test_scales_found_by_hand(rng):
    """y = V W x with ℒ = mean (y − t)²: ȳ = 2 (y − t) / n and h̄ = ȳ V."""
    w, v, x, t = rng.normal(size=(4, 3)), rng.normal(size=(2, 4)), rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    first, last = tn.nn.Linear(3, 4, bias=False), tn.nn.Linear(4, 2, bias=False)
    first.weight, last.weight = tn.nn.Parameter(w), tn.nn.Parameter(v)
    rows = scales(tn.nn.Sequential(first, last), (x, t), loss=F.mse_loss)
    h = x @ w.T
    dy = 2.0 * (h @ v.T - t) / t.size
    expected = [("0", rms(h), rms(dy @ v)), ("1", rms(h @ v.T), rms(dy))]
    assert [row.name for row in rows] == ["0", "1"]
    np.testing.assert_allclose([row[1:] for row in rows], [row[1:] for row in expected], rtol=1e-12)


def test_layers_that_are_asked_for(rng):
    model, pair = mlp(), batch(rng)
    rows = scales(model, pair, layers=["head", "blocks.1.body.0", ""])
    assert [row.name for row in rows] == ["head", "blocks.1.body.0", ""]
    assert rows[0][1:] == rows[2][1:]
    with pytest.raises(ArgumentError, match=r"no layer 'heed'; did you mean 'head'\?"):
        scales(model, pair, layers=["heed"])
    with pytest.raises(ArgumentError, match=r"layers=\['head'\]"):
        scales(model, pair, layers="head")
    model.spare = tn.nn.Linear(3, 3)
    assert "spare" not in [row.name for row in scales(model, pair)]
    with pytest.raises(ArgumentError, match="'spare' did not run"):
        scales(model, pair, layers=["spare"])


def test_frozen_models_and_layers_before_any_parameter_have_gradients_too(rng):
    model, (x, y) = tn.nn.Sequential(tn.nn.ReLU(), tn.nn.Linear(6, 3, rng=0)), batch(rng)
    for p in model.parameters():
        p.requires_grad = False
    rows = scales(model, (x, y))
    activations, gradients = by_probes(list(model), tn.as_tensor(x), lambda h: F.cross_entropy(h, y))
    assert [row.gradient for row in rows] == pytest.approx(gradients, rel=1e-6)
    assert [row.activation for row in rows] == pytest.approx(activations, rel=1e-6)
    assert not any(p.requires_grad for p in model.parameters())


def test_modules_that_run_twice_and_tied_ones(rng):
    class Twice(tn.nn.Module):
        def __init__(self):
            self.layer = tn.nn.Linear(3, 3, rng=0)

        def forward(self, x):
            return self.layer(tn.tanh(self.layer(x)))

    x = rng.normal(size=(2, 3)).astype(np.float32)
    twice = Twice()
    rows = scales(twice, x)
    assert [row.name for row in rows] == ["layer", "layer (2)"]
    tied = scales(tn.nn.Sequential(twice.layer, Tanh(), twice.layer), x, layers=["0", "2"])
    assert [row.name for row in tied] == ["0", "2"]
    assert [row[1:] for row in rows] == [row[1:] for row in tied]


class Tanh(tn.nn.Module):
    def forward(self, x):
        return tn.tanh(x)


def test_without_labels(rng):
    model, x = mlp(), batch(rng)[0]
    rows, again = scales(model, x), scales(model, tn.as_tensor(x))
    assert rows == again
    u = np.random.default_rng(0).standard_normal((5, 3))
    assert rows[-1].gradient == pytest.approx(rms(u), rel=1e-6)
    squares = scales(model, x, loss=lambda out: (out * out).sum())
    assert squares[-1].gradient == pytest.approx(2.0 * squares[-1].activation, rel=1e-6)
    with tn.no_grad():
        assert scales(model, x) == rows
    linear = tn.nn.Linear(6, 2, rng=0)
    assert [row.name for row in scales(linear, x)] == [""]


@pytest.mark.parametrize(
    ("model", "pair", "options", "error", "fragment"),
    [
        (Tanh, (1.0, 2.0, 3.0), {}, ArgumentError, "not a tuple of 3"),
        (lambda: tn.exp, 1.0, {}, DTypeError, "model must be a nn.Module"),
        (lambda: tn.nn.Sequential(Tanh()), [1.0], {"loss": lambda h: h.numpy()}, ShapeError, "not a ndarray"),
        (lambda: tn.nn.Sequential(Tanh()), [1.0, 2.0], {"loss": lambda h: h * 2.0}, ShapeError, r"not shape \(2,\)"),
        (lambda: tn.nn.Sequential(tn.nn.Linear(1, 2)), ([[1.0]], [5]), {}, OutOfRangeError, "cross_entropy"),
    ],
)
def test_what_has_no_scales(model, pair, options, error, fragment):
    with pytest.raises(error, match=fragment):
        scales(model(), pair, **options)


def test_a_layer_that_gives_no_tensor_of_floats():
    class Split(tn.nn.Module):
        def forward(self, x):
            return x, x > 0

    class Model(tn.nn.Module):
        def __init__(self):
            self.split, self.inner = Split(), Tanh()

        def forward(self, x):
            return self.inner(self.split(x)[0])

    with pytest.raises(DTypeError, match="'split' gives a tuple"):
        scales(Model(), [1.0, 2.0])
    assert [row.name for row in scales(Model(), [1.0, 2.0], layers=["inner"])] == ["inner"]
    with pytest.raises(DTypeError, match="the model gives a tuple; pass loss="):
        scales(tn.nn.Sequential(Split()), [1.0])


def test_watchers_within_each_other_all_see(rng):
    model, pair = mlp(), batch(rng)
    with tn.detect_anomaly():
        assert len(scales(model, pair)) == 5
        assert len(explain(model, pair[0]).rows) == 13
        model.head.weight.data[...] = 3e38
        with np.errstate(all="ignore"), pytest.raises(tn.errors.AnomalyError, match="linear: makes"):
            scales(model, pair)
