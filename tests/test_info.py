"""``python -m tinynorm info``"""

import json
import sys

import numpy as np
import pytest
import strict_cupy

import tinynorm as tn
from tinynorm.__main__ import main


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
    cupy = strict_cupy.install(monkeypatch, memory=24 << 30, driver=13010)
    cupy.machine.used[1] = 47 << 29
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["CuPy"] == "14.2.0, CUDA 13.2; driver: CUDA 13.1"
    assert found["cuda:0"] == "stand-in 0, compute capability 9.0, 24.0 of 24.0 GiB free"
    assert found["cuda:1"] == "stand-in 1, compute capability 9.0, 0.5 of 24.0 GiB free"


def test_cupy_without_a_driver(capsys, monkeypatch):
    strict_cupy.install(monkeypatch, driver=0)
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["CuPy"].endswith("driver: none")
    assert "no CUDA driver" in found["devices"]
