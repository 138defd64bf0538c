"""``python -m benchmarks gpu`` measures what it says. No times are judged."""

import pytest

from benchmarks import contestants, measures, setting
from benchmarks.rows import Row, target


def test_each_row_is_measured_on_the_device(cupy):
    rows = [Row(*fields) for fields in measures.gpu(contestants.on_gpu(""), 1, quick=True)]
    assert [row.task for row in rows] == [
        "RMSNorm forward", "RMSNorm forward + backward", "LayerNorm forward", "LayerNorm forward + backward",
        "training step, Adam",
    ]  # fmt: skip
    for row in rows:
        assert row.group == "gpu"
        assert set(row.found) == {"tinynorm", "formulas"} | ({"copy"} if "Norm" in row.task else set())
        assert all(value > 0 for value in row.found.values())


def test_its_setting_names_the_device(cupy):
    about, device = setting.devices()
    assert about.startswith(f"CuPy {cupy.__version__}")
    assert "GiB free" in device


@pytest.mark.parametrize(("size", "aims"), [((8192, 4096), (1.2, 1.0)), ((4096, 1024), (None, None))])
def test_one_size_has_aims(size, aims):
    row = Row("gpu", "RMSNorm forward", size, 1, {"tinynorm": 1.0})
    assert (target(row, "copy"), target(row, "torch")) == aims
