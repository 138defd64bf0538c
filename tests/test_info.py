"""``python -m tinynorm info``"""

import json
import sys
import types
from contextlib import nullcontext

import numpy as np
import pytest

import tinynorm as tn
from tinynorm.__main__ import main


def stand_in(devices, driver):
    """A CuPy with such devices: name, major and minor version, bytes free and in all."""
    cupy, current = types.ModuleType("cupy"), []

    def device(index):
        current[:] = [devices[index]]
        return nullcontext()

    cupy.__version__, cupy.ndarray, cupy.asarray = "14.2.0", type("ndarray", (), {}), np.asarray
    cupy.cuda = types.SimpleNamespace(
        Device=device,
        runtime=types.SimpleNamespace(
            CUDARuntimeError=RuntimeError,
            runtimeGetVersion=lambda: 13020,
            driverGetVersion=lambda: driver,
            getDeviceCount=lambda: len(devices),
            getDeviceProperties=lambda i: dict(zip(("name", "major", "minor"), devices[i][:3], strict=True)),
            memGetInfo=lambda: current[0][3:],
        ),
    )
    return cupy


def test_the_host(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setenv("TINYNORM_NUM_THREADS", "3")
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    found = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert found["tinynorm"] == tn.__version__
    assert found["NumPy"] == np.__version__
    assert "TINYNORM_NUM_THREADS=3" in found["variables"]
    assert "pip install 'tinynorm[cuda13]'" in found["CuPy"]
    assert f"{tn.get_num_threads()} for large arrays, kernels on" == found["threads"]
    with tn.formulas_only():
        assert main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["threads"].endswith("kernels off")


def test_blas_threads_are_known_where_threadpoolctl_is(capsys, monkeypatch):
    pytest.importorskip("threadpoolctl")
    assert main(["info", "--json"]) == 0
    assert "threads: " in json.loads(capsys.readouterr().out)["BLAS"]
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert main(["info", "--json"]) == 0
    assert "threadpoolctl is not installed: pip install" in json.loads(capsys.readouterr().out)["BLAS"]


def test_a_numpy_that_does_not_know_its_blas(capsys, monkeypatch):
    monkeypatch.setattr(np, "show_config", lambda mode: {})
    assert main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["BLAS"].startswith("unknown, threads")


def test_devices_and_their_memory(capsys, monkeypatch):
    devices = [(b"NVIDIA H200", 9, 0, 130 << 30, 140 << 30), (b"NVIDIA L4", 8, 9, 1 << 29, 24 << 30)]
    monkeypatch.setitem(sys.modules, "cupy", stand_in(devices, driver=12080))
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["CuPy"] == "14.2.0, CUDA 13.2; driver: CUDA 12.8"
    assert found["cuda:0"] == "NVIDIA H200, compute capability 9.0, 130.0 of 140.0 GiB free"
    assert found["cuda:1"] == "NVIDIA L4, compute capability 8.9, 0.5 of 24.0 GiB free"


def test_cupy_without_a_driver(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", stand_in([], driver=0))
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["CuPy"].endswith("driver: none")
    assert "no CUDA driver" in found["devices"]
