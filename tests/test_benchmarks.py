"""The benchmarks run, and say what they should. No times are judged here: they belong to the machine."""

import json
import subprocess
import sys
from argparse import ArgumentTypeError
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import strict_cupy
from test_parallel import of_mpi

import tinynorm as tn
from benchmarks import __main__ as command
from benchmarks import arguments, contestants, measures, network, picture, processes, report, setting
from benchmarks.rows import APART, BOTH, FRAMEWORKS, GROUPS, NORM_SIZES, STEP_SIZES, Line, Row, merge, target
from tinynorm import bench
from tinynorm.__main__ import main

ROOT = Path(__file__).parents[1]


def run(*options):
    """``python -m benchmarks`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *options], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def without_peers(*options):
    done = run(*options, "--quick", "--against", "")
    assert done.returncode == 0, done.stderr
    return done


# Smoke: each benchmark once, at its smallest size


TASKS = {
    "norms": ["RMSNorm forward", "RMSNorm forward + backward", "LayerNorm forward", "LayerNorm forward + backward"],
    "linear": ["Linear forward + backward"],
    "step": ["training step, Adam"],
    "overhead": ["(a * b + c).sum().backward()"],
    "memory": ["peak of a training step"],
    "import": ["import after NumPy's, from bytecode"],
}


def test_every_group_runs_and_is_written(tmp_path):
    kept = tmp_path / "all.json"
    done = without_peers("--json", str(kept))
    rows = [Row(*fields) for fields in json.loads(kept.read_text(encoding="utf-8"))["rows"]]
    assert [row.task for row in rows] == [task for tasks in TASKS.values() for task in tasks]
    assert set(TASKS) | set(APART) == set(GROUPS)
    for row in rows:
        assert row.group in TASKS
        assert row.threads == 1
        assert all(value > 0 for value in row.found.values()), row
        assert row.found.keys() >= {"tinynorm", "numpy" if row.group == "import" else "formulas"}
        assert ("copy" in row.found) == (row.group == "norms")
        assert row.task in done.stdout
    assert "÷ copy" in done.stdout
    assert "OPENBLAS_CORETYPE" not in done.stdout
    assert done.stdout.splitlines()[-1] == "measured with --quick: no true numbers"


def test_growth_runs_with_threads(tmp_path):
    kept = tmp_path / "growth.json"
    done = without_peers("growth", "--threads", "2", "--json", str(kept))
    rows = [Row(*fields) for fields in json.loads(kept.read_text(encoding="utf-8"))["rows"]]
    assert {row.task for row in rows} == {
        "RMSNorm over rows", "RMSNorm over width", "training step over depth", "training step over batch",
        "RMSNorm, 2 threads",
    }  # fmt: skip
    assert all(("1 thread" in row.found) == (row.task == "RMSNorm, 2 threads") for row in rows)
    assert done.stdout.count("linear is 1") == 4
    assert "they pay" in done.stdout


def test_several_processes_run(tmp_path):
    of_mpi()
    kept = tmp_path / "parallel.json"
    done = without_peers("parallel", "--json", str(kept))
    (row,) = (Row(*fields) for fields in json.loads(kept.read_text(encoding="utf-8"))["rows"])
    assert row[:4] == ("parallel", "training step, 2 ranks", [32, 32, 3], 1)
    assert row.found.keys() == {"tinynorm", "1 rank", "Allreduce"}
    assert all(value > 0 for value in row.found.values())
    assert "efficiency" in done.stdout
    assert [done.stdout.count(n.name) for n in (*network.NETWORKS, network.NVLINK)] == [1, 1, 2, 1]
    assert "÷" not in done.stdout


def test_several_processes_need_mpi(monkeypatch):
    monkeypatch.setattr(processes, "which", lambda name, path: None)
    with pytest.raises(processes.Failed, match=r"parallel needs mpi4py and mpiexec; .* '\.\[mpi\]'"):
        list(*processes.runs("parallel", [], 1, True))


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_pytorch_does_the_same_work(tmp_path):
    kept = tmp_path / "torch.json"
    done = run("step", "--quick", "--json", str(kept))
    assert done.returncode == 0, done.stderr
    found = json.loads(kept.read_text(encoding="utf-8"))
    assert all("torch" in Row(*fields).found for fields in found["rows"])
    assert found["settings"][0]["versions"].keys() >= {"numpy", "torch"}
    assert all(sign in done.stdout for sign in ("÷ torch", "÷ torch fused", " 0.33", " 0.42"))


def test_what_was_measured_can_be_shown_again(tmp_path):
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    before = without_peers("overhead", "--json", str(first)).stdout
    without_peers("overhead", "--threads", "2", "--json", str(second))
    assert run("--read", str(first)).stdout == before
    files = [tmp_path / "table.md", *([tmp_path / "bars.png"] if find_spec("matplotlib") else [])]
    options = [part for file in files for part in ("--markdown" if file.suffix == ".md" else "--picture", str(file))]
    done = run("--read", str(first), str(second), *options)
    assert done.returncode == 0, done.stderr
    mark, _, title, _, head, rule, *lines = files[0].read_text(encoding="utf-8").splitlines()
    assert (mark, title) == (report.MARKS[0], "### overhead")
    assert head.startswith("| task | size | threads | tinynorm | ÷ formulas | ÷ numpy |")
    assert rule == "| --- | --- | ---: | ---: | ---: | ---: |"
    assert [line.split(" | ")[2] for line in lines[:2]] == ["1", "2"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files[1:])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nroms"], "'nroms' is none of norms, linear"),
        (["--against", "torhc"], "'torhc' is none of torch"),
        (["--read", "nowhere.json"], "benchmarks: nowhere.json: No such file"),
        (["--read", "nowhere.json", "norms"], "nowhere.json: No such file"),
        (["--read", "norms"], "norms is a group; write groups before --read"),
        (["--read", __file__], "is not what --json writes"),
        (["--json", "nowhere/all.json"], "nowhere/all.json cannot be written"),
        (["--json", str(ROOT)], "cannot be written"),
        (["--markdown", str(ROOT / "README.md")], "lacks the lines <!-- measured: begin -->"),
    ],
)
def test_misspelt_commands_end_in_one_sentence(options, said, capsys):
    try:
        status = command.main(options)
    except SystemExit as left:
        status = left.code
    assert status == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_without_a_gpu_its_group_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(SystemExit) as ended:
        command.main(["norms", "gpu"])
    assert ended.value.code == 2
    assert "error: gpu: device 'cuda' needs CuPy" in capsys.readouterr().err


def test_a_library_that_is_not_installed_is_named(monkeypatch, capsys):
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        command.main(["overhead", "--against", "torch"])
    assert "torch is not installed; install all of them with: pip install -e '.[bench]'" in capsys.readouterr().err
    assert arguments.parse([]).against == []


def test_what_is_named_twice_is_measured_once():
    assert arguments.parse(["step", "norms", "step", "--against", ""]).groups == ["step", "norms"]


def test_a_process_that_fails_is_named():
    with pytest.raises(processes.Failed, match=r"benchmarks\.worker nonsense .* ended with status 1"):
        [list(run) for run in processes.runs("nonsense", [], 1, quick=True)]


def test_a_picture_needs_matplotlib_and_an_ending_that_it_knows(monkeypatch, tmp_path):
    monkeypatch.setattr(picture, "endings", lambda: [".png", ".svg"])
    assert arguments.drawable(str(tmp_path / "bars.png")) == str(tmp_path / "bars.png")
    with pytest.raises(ArgumentTypeError, match=r"bars\.gif must end in one of \.png, \.svg"):
        arguments.drawable("bars.gif")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ArgumentTypeError, match=r"matplotlib cannot be imported .* pip install 'tinynorm\[bench\]'"):
        arguments.drawable("bars.png")


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_pictures_of_any_rows_are_drawn(tmp_path):
    rows = [
        measured("norms", "RMSNorm forward", (4096, 1024), tinynorm=1.0, torch=4.0, mygrad=2.0, copy=0.5),
        measured("memory", "a peak", (), tinynorm=1.0, formulas=2.0),
    ]
    for some in (rows, rows[:1], rows[1:]):
        picture.draw(str(tmp_path / "bars.png"), merge(some))
        assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")
        (tmp_path / "bars.png").unlink()


def test_growth_alone_has_no_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(picture, "endings", lambda: [".png"])
    kept = tmp_path / "growth.json"
    rows = [measured("growth", "x", (n,), tinynorm=1.0 * n) for n in (1, 2)]
    kept.write_text(json.dumps({"rows": rows, "settings": [], "quick": False}), encoding="utf-8")
    assert command.main(["--read", str(kept), "--picture", str(tmp_path / "bars.png")]) == 2
    assert "growth and parallel have tables only" in capsys.readouterr().err
    assert command.main(["norms", "--read", str(kept)]) == 2
    assert f"{kept}: nothing there of norms" in capsys.readouterr().err


# Runs that end early


def some_runs(*ends):
    """What a group runs: for each end a row, and then the exception that it is."""

    def run(end):
        yield {"setting": SETTING}
        yield measured("norms", f"before {end!r}", (1,), tinynorm=1.0, torch=2.0)
        if end is not None:
            raise end

    return lambda *options: map(run, ends)


def test_a_library_that_fails_takes_nothing_from_the_others(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(processes, "runs", some_runs(processes.Failed("it broke"), None))
    kept = tmp_path / "all.json"
    assert command.main(["norms", "--json", str(kept)]) == 2
    shown = capsys.readouterr()
    assert "python -m benchmarks: it broke" in shown.err
    assert "before None" in shown.out
    assert len(json.loads(kept.read_text(encoding="utf-8"))["rows"]) == 2


def test_after_an_interrupt_there_is_what_was_measured_and_documents_are_left_alone(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(processes, "runs", some_runs(None, KeyboardInterrupt(), None))
    kept, document = tmp_path / "all.json", tmp_path / "table.md"
    assert command.main(["norms", "--json", str(kept), "--markdown", str(document)]) == 130
    shown = capsys.readouterr()
    assert shown.err.endswith("interrupted\n")
    assert "before None" in shown.out
    assert "before KeyboardInterrupt()" in shown.out
    assert len(json.loads(kept.read_text(encoding="utf-8"))["rows"]) == 2
    assert not document.exists()


def test_what_was_measured_is_shown_where_it_cannot_be_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(processes, "runs", some_runs(None))
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setattr(Path, "write_text", lambda path, *rest, **more: folder.read_text())  # which fails
    assert command.main(["norms", "--json", str(folder / "all.json")]) == 2
    shown = capsys.readouterr()
    assert "before None" in shown.out
    assert str(folder) in shown.err


def test_a_reader_who_has_seen_enough_is_no_error(tmp_path):
    kept = tmp_path / "all.json"
    rows = [measured("overhead", f"x{i}", (1,), tinynorm=1.0, torch=2.0) for i in range(5000)]  # more than a pipe holds
    kept.write_text(json.dumps({"rows": rows, "settings": [], "quick": False}), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks", "--read", str(kept)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(b"task")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        ([["norms", "x", [1], 1, {"tinynorm": "1.0"}]], []),
        ([["norms", "x", [1], 1, {"torch": 1.0}]], []),
        ([["norms", "x", [1], 1, [1.0]]], []),
        ([["norms", "x", [1], 1, {"tinynorm": 1.0}]], [{}]),
        ([["norms", "x", [1], 1, {"tinynorm": 1.0}]], [3]),
        ([["norms", "x", [1], 1, {"tinynorm": 1.0}]], 3),
    ],
)
def test_a_file_that_lacks_something_is_named(rows, settings, tmp_path, capsys):
    file = tmp_path / "broken.json"
    file.write_text(json.dumps({"rows": rows, "settings": settings, "quick": False}), encoding="utf-8")
    assert command.main(["--read", str(file)]) == 2
    assert f"{file} is not what --json writes" in capsys.readouterr().err.splitlines()[-1]


# How it measures


def test_contestants_take_turns():
    order = []
    found = bench.alternate({name: lambda name=name: order.append(name) for name in "abc"}, seconds=0.0, least=3)
    turns = [name for name, before in zip(order, [None, *order], strict=False) if name != before]
    # Each to warm up, then three rounds, begun by a, b and c; who ends one round and begins the next shows once.
    assert "".join(turns) == "abc" + "abc" + "bca" + "cab"
    assert found.keys() == {*"abc"}


def test_a_sample_waits_for_what_it_began():
    events = []
    bench.alternate({"a": lambda: events.append("call")}, 0.0, 1, finish=lambda: events.append("finish"))
    assert events[-1] == "finish"
    assert events.count("finish") == 3  # twice before, then the sample


def test_measuring_processes_start_from_a_clean_environment(monkeypatch):
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "TINYNORM_KERNELS"):
        monkeypatch.setenv(name, "1")
    found = setting.environment(2)
    assert not found.keys() & {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "TINYNORM_KERNELS"}
    assert found["OPENBLAS_NUM_THREADS"] == "2"


def test_contestants_that_disagree_are_not_measured():
    one = np.ones(3, np.float32)
    measures.agree("ones", {"a": lambda: one, "b": lambda: [one + 1e-6]})
    for other in (one * np.float32(1.01), one * np.float32(np.nan), one[:2]):
        with pytest.raises(SystemExit, match="a and b do not agree on ones"):
            measures.agree("ones", {"a": lambda: one, "b": lambda other=other: other})
    with pytest.raises(SystemExit, match="b computes ones in float64, a in float32"):
        measures.agree("ones", {"a": lambda: one, "b": lambda: one.astype(np.float64)})


def test_imports_are_measured_from_bytecode(monkeypatch):
    """Also where Python is told to write none."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    starts = []

    def start(library, variables):
        starts.append((library, any(Path(variables["PYTHONPYCACHEPREFIX"]).rglob("tinynorm/**/tensor.*.pyc"))))
        return measure(library, variables)

    measure = processes._import_time
    monkeypatch.setattr(processes, "_import_time", start)
    (run,) = processes.runs("import", [], 1, quick=True)
    assert {*next(iter(run)).found} == {"tinynorm", "numpy"}
    assert starts == [("tinynorm", False), ("numpy", True), ("tinynorm", True), ("numpy", True)]


def test_an_import_that_fails_is_named():
    with pytest.raises(processes.Failed, match="import nonsense: ModuleNotFoundError: No module named 'nonsense'"):
        processes._import_time("nonsense", setting.environment(1))


def test_the_command_line_knows_all_libraries():
    assert {*contestants.PEERS} == {*arguments.PEERS} > {*FRAMEWORKS}


@pytest.mark.parametrize("library", [*contestants.PEERS, ""])
def test_every_library_computes_the_same(library):
    """Nothing would be measured otherwise; here all of it is asked at small sizes."""
    if library and find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    made = contestants.all_of(library)
    x, dy, weight, bias = measures.normal(1, (6, 5), (6, 5), (5,), (5,))
    for kind, parameters in (("rms_norm", (weight,)), ("layer_norm", (weight, bias))):
        pairs = {c.name: c.norm(kind, x, parameters, dy) for c in made if hasattr(c, "norm")}
        measures.agree(kind, {name: pair[0] for name, pair in pairs.items()})
        measures.agree(kind, {name: pair[1] for name, pair in pairs.items()})
    matrix = measures.normal(2, (5, 5))[0]
    measures.agree("linear", {c.name: c.linear(x, (matrix, bias), dy) for c in made if hasattr(c, "linear")})
    steps = measures.step_calls(made, (8, 16, 1))
    for _ in range(3):  # so that Adam's steps are compared too
        measures.agree("step", steps)


@pytest.mark.parametrize("library", contestants.PEERS)
def test_every_library_stays_in_float32(library):
    """float64 would be slower. On the way as well: no gradient of a training step may come out of it."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    for contestant in contestants.all_of(library):
        if hasattr(contestant, "starting"):
            x, labels = measures.normal(0, (8, 64))[0], np.arange(8)
            loss, parameters = contestant.starting(lambda: tn.nn.PreNormMLP(64, 16, 1, 10, rng=0), x, labels)
            gradients = contestant.pull(loss, parameters, np.float32(1))(parameters)[1]
            assert {str(np.asarray(g).dtype) for g in gradients} == {"float32"}


# The numbers


def test_a_document_takes_the_tables_between_its_marks(tmp_path):
    document = tmp_path / "document.md"
    first, last = report.MARKS
    document.write_text(f"# Title\n\n{first}\nold\n{last}\n\nRest\n", encoding="utf-8")
    for _ in range(2):  # a second time as well as the first
        report.write_markdown(document, [("norms", [["a", "b"], ["1", "2"]])], [], ["a note"])
        assert document.read_text(encoding="utf-8") == (
            f"# Title\n\n{first}\n\n### norms\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n- a note\n\n{last}\n\nRest\n"
        )


def test_the_documentation_has_the_marks():
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert [text.count(mark) for mark in report.MARKS] == [1, 1]


def measured(group, task, size, threads=1, **found):
    return Row(group, task, size, threads, found)


SETTING = {
    "processor": "a processor", "system": "Linux", "python": "3.11.7", "versions": {"numpy": "2.4"},
    "blas": ["openblas 1"], "load": 0.5, "threads": 1, "cores": [1],
}  # fmt: skip


def test_ratios_belong_to_the_process_that_measured_both():
    first = measured("step", "a", (1,), tinynorm=2.0, torch=4.0)
    second = measured("step", "a", (1,), tinynorm=3.0, jax=4.0, torch=3.0)
    (line,) = merge([first, second])
    assert line.row is first
    assert line.ratios == {"torch": 0.5, "jax": 0.75}


@pytest.mark.parametrize(
    ("group", "task", "size", "other", "one", "two"),
    [
        ("norms", f"RMSNorm {BOTH}", NORM_SIZES[0], "torch", 0.27, 0.40),
        ("norms", "RMSNorm forward", (128, 256), "torch", None, None),
        ("norms", "RMSNorm forward", (512, 1024), "torch", 0.55, None),
        ("norms", "RMSNorm forward", (4096, 1024), "torch", 0.55, 0.55),
        ("norms", "RMSNorm forward", (4096, 1024), "copy", 2.2, 2.4),
        ("norms", f"RMSNorm {BOTH}", (16384, 768), "copy", 2.6, 2.9),
        ("norms", f"RMSNorm {BOTH}", (65536, 64), "copy", None, None),
        ("norms", f"LayerNorm {BOTH}", (65536, 64), "torch", 2.2, 2.5),
        ("norms", f"LayerNorm {BOTH}", (16384, 768), "torch", 1.0, 2.5),
        ("norms", f"LayerNorm {BOTH}", (512, 1024), "torch", 1.5, 2.5),
        ("linear", "Linear", (128, 256, 256), "torch", 1.05, 1.08),
        ("step", "a step", STEP_SIZES[2], "torch fused", 1.15, 1.15),
        ("overhead", "a graph", (8,), "torch", 0.12, None),
        ("memory", "a peak", STEP_SIZES[2], "torch", 1.0, None),
        ("memory", "a peak", STEP_SIZES[2], "jax", None, None),
    ],
)
def test_aims(group, task, size, other, one, two):
    assert target(measured(group, task, size), other) == one
    assert target(measured(group, task, size, threads=2), other) == two


@pytest.mark.parametrize(
    ("group", "task", "size", "other", "one", "two"),
    [
        ("norms", f"RMSNorm {BOTH}", NORM_SIZES[0], "mygrad", 0.32, 1.0),  # 0.27 / 0.84
        ("norms", f"LayerNorm {BOTH}", (16384, 768), "autograd", 0.12, 1.0),  # 1.0 / 8
        ("norms", f"RMSNorm {BOTH}", NORM_SIZES[0], "dezero", 1.0, 1.0),
        ("norms", "RMSNorm forward", (4096, 1024), "mygrad", 1.0, 1.0),
        ("norms", "LayerNorm forward", (4096, 1024), "mygrad", None, None),
        ("linear", "Linear", (128, 256, 256), "pydynet", 1.0, 1.0),
        ("step", "a step", STEP_SIZES[1], "pydynet", 0.68, 1.0),  # 0.80 / 1.18
        ("overhead", "a graph", (8,), "mygrad", 0.17, None),  # 0.12 / (40 / 56)
        ("memory", "a peak", STEP_SIZES[2], "dezero", 1.0, None),
        ("import", "an import", (), "autograd", 1.0, 1.0),
        ("import", "an import", (), "torch", None, None),
    ],
)
def test_aims_beside_frameworks_in_numpy(group, task, size, other, one, two):
    """Ahead by what they took of PyTorch's time, where that is known; ahead at all on the other rows that have aims."""
    assert target(measured(group, task, size), other) == one
    assert target(measured(group, task, size, threads=2), other) == two


def test_the_summary_counts_rows_and_aims():
    lines = merge([
        measured("overhead", "a graph", (8,), tinynorm=6e-6, torch=60e-6, mygrad=12e-6, copy=1e-6),
        measured("memory", "a peak", (8,), tinynorm=2.0, torch=1.0),
    ])  # fmt: skip
    assert report.tables(lines)[-1] == (
        "summary",
        [
            ["beside", "rows", "ahead on", "ratio from", "to", "aims reached"],
            ["torch", "2", "1", "0.10", "2.00", "1 of 2"],
            ["mygrad", "1", "1", "0.50", "0.50", "0 of 1"],
            ["copy", "1", "0", "6.00", "6.00", ""],
        ],
    )


def test_notes_name_the_machine_once():
    other = {**SETTING, "versions": {"numpy": "2.4", "torch": "2.13"}, "blas": ["openmp 1"], "load": 1.0}
    machine, load = report.notes([SETTING, other, SETTING], quick=False)
    assert "Python 3.11.7, numpy 2.4, torch 2.13; BLAS: openblas 1; openmp 1; 1 thread, pinned to core 1" in machine
    assert "0.5 to 1.0" in load
    assert len(report.notes([SETTING, {**SETTING, "threads": 2}], quick=True)) == 4
    assert "was not quiet" in report.notes([SETTING, {**SETTING, "load": 3.0}], quick=False)[-1]


def test_the_table_shows_ratio_beside_aim():
    lines = merge([
        measured("overhead", "a graph", (8,), tinynorm=6e-6, torch=60e-6),
        measured("overhead", "another", (9,), tinynorm=9e-3, torch=60e-3, copy=3e-3),
    ])  # fmt: skip
    assert report.cells(lines) == [
        ["task", "size", "tinynorm", "÷ torch", "÷ copy"],
        ["a graph", "8", "6.0 µs", "0.10 ≤ 0.12", ""],
        ["another", "9", "9.00 ms", "0.15 > 0.12", "3.00"],
    ]


def test_growth_says_how_much_and_from_where():
    quadratic = [Line(measured("growth", "x", (n,), tinynorm=1e-6 * n * n), {}) for n in (1, 2, 4, 8)]
    assert report.growth_summary(quadratic) == ["x: time ~ size^2.00 from 2 to 8; linear is 1"]
    assert [row[4] for row in report.growth_cells(quadratic)] == ["× half the size", "", "4.00", "4.00", "4.00"]
    paying = [
        Line(measured("growth", "x", (n,), tinynorm=1.0), {"1 thread": r})
        for n, r in ((1, 0.9), (2, 1.3), (4, 0.8), (8, 0.6))
    ]
    assert report.growth_summary(paying) == ["x: they pay from 4 on"]
    assert report.growth_summary(paying[:2]) == ["x: they pay at none of these sizes"]


# python -m tinynorm bench


def test_the_short_version_prints_a_table(capsys):
    assert main(["bench", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["device", "shape", "pass", "copy", "RMSNorm", "LayerNorm", "saved"]
    assert lines[1].startswith("cpu     8 × 64        forward ")
    assert lines[2].startswith("cpu     8 × 64        forward + backward ")


def test_the_short_version_prints_json(capsys):
    assert main(["bench", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["threads"] >= 1
    devices = {"cpu"} if found["gpu"] else {"cpu", "cuda"}
    assert {row["device"] for row in found["rows"]} == devices
    row = found["rows"][0]
    assert row.keys() == {"device", "shape", "pass", "copy", "rms_norm", "layer_norm", "less"}
    assert row["less"] == pytest.approx(1 - row["rms_norm"] / row["layer_norm"])


def test_the_short_version_measures_a_gpu_and_waits_for_it(monkeypatch, capsys):
    strict_cupy.install(monkeypatch)
    waited = []
    monkeypatch.setattr(strict_cupy.device.Device, "synchronize", lambda device: waited.append(device))
    assert main(["bench", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["cpu", "cpu", "cuda", "cuda"]
    assert lines[-1].startswith("Medians in µs. NumPy ")
    assert "no GPU" not in lines[-1]
    assert len(waited) == 2 * 3 * (2 + 5)  # for two passes and three contestants: twice to warm up, then five samples


# Other networks, on paper


def parallel_row(rows, width, alone, allreduce):
    return Row("parallel", "training step, 2 ranks", (rows, width, 3), 1, {
        "tinynorm": alone + allreduce, "1 rank": alone, "Allreduce": allreduce,
    })  # fmt: skip


def test_the_parameters_on_paper_are_those_of_the_model():
    for width, blocks in [(32, 3), (5, 0), (7, 2)]:
        model = tn.nn.PreNormMLP(64, width, blocks, 10)
        assert network.parameters(width, blocks) == sum(p.size for p in model.parameters())


def test_allreduce_on_paper():
    net = network.Network("", latency=1e-3, bandwidth=1e6)
    assert network.allreduce(net, 2, 1e6) == pytest.approx(2e-3 + 1.0)  # to and fro half of it, each started once
    assert network.allreduce(net, 8, 0) == pytest.approx(6e-3)
    assert network.allreduce(net, 5, 0) == pytest.approx(6e-3)
    assert network.allreduce(net, 8, 4e6) == pytest.approx(6e-3 + 7.0)


def test_where_allreduce_is_half_of_a_step_on_paper():
    # 1 ms and 10 µs for each row; the memory takes 100 µs and 1 ns for each byte
    size = {width: 4 * network.parameters(width, 3) for width in (32, 512)}
    rows = [parallel_row(n, w, 1e-3 + 1e-5 * n, 1e-4 + 1e-9 * size[w]) for w in (32, 512) for n in (32, 256)]
    memory = network.here(rows)
    assert (memory.latency, memory.bandwidth) == pytest.approx((0.5e-4, 1e9))
    lines = {(line.network, line.compute, line.width): line for line in network.on_paper(rows)}
    assert len(lines) == 2 * (1 + len(network.NETWORKS) + 2)
    line = lines["shared memory here", "one core here", 512]
    time = 1e-4 + 1e-9 * size[512]
    assert line.shares[0] == pytest.approx(time / (time + 1e-3 + 256e-5))
    assert line.rows[0] == pytest.approx((time - 1e-3) / 1e-5)
    assert lines["100 Gb InfiniBand", "one core here", 32].rows == (0.0, 0.0, 0.0)  # it always pays
    fast = lines["NVLink 4", "H200", 512]
    flops = 6 * size[512] / 4 * fast.rows[1]
    assert flops / 67e12 == pytest.approx(3 * 2 * 3e-6 + 2 * 7 / 8 * size[512] / 370e9)


def test_one_size_is_enough_for_a_table():
    lines = merge([parallel_row(32, 32, 1e-3, 1e-4)])
    (name, measured), (_, paper) = report.tables(lines)
    assert name == "parallel"
    assert measured[1][2:] == ["0.11 MB", "1.10 ms", "100.0 µs", "9.09 %", "1.00 ms", "90.9 %"]
    assert len(paper) == 1 + 4 + 2
