"""``python -m tinynorm info`` where there is a device."""

import json
import re

from tinynorm.__main__ import main


def test_every_device_and_its_memory(cupy, capsys):
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["CuPy"].startswith(f"{cupy.__version__}, CUDA ")
    names = [name for name in found if name.startswith("cuda:")]
    assert names == [f"cuda:{i}" for i in range(cupy.cuda.runtime.getDeviceCount())]
    for name in names:
        about = re.search(r"^.+, compute capability \d+\.\d, ([\d.]+) of ([\d.]+) GiB free$", found[name])
        assert 0 <= float(about[1]) <= float(about[2])
        assert float(about[2]) > 0
