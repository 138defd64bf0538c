"""The pytest plugin, in runs of pytest of its own: the fixture xp, the marker gpu, and hypothesis profiles."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

import tinynorm as tn
from tinynorm.testing.plugin import PROFILES

ROOT = Path(tn.__file__).parents[1]
NAME = "tinynorm.testing.plugin"

# The plugin is found as an installed one is, by an entry point, which is the one of setup.cfg.
PROFILE = """
from hypothesis import settings

def test_profile():
    s = settings.default
    print("profile", s.max_examples, s.derandomize, s.deadline, s.verbosity.name)
"""


def entry_points():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config["options.entry_points"]["pytest11"].strip()


@pytest.fixture
def project(tmp_path):
    """Runs pytest on files in a folder of their own, where tinynorm is installed."""
    installed = tmp_path / "site" / "tinynorm-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: tinynorm\nVersion: 0\n")
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{entry_points()}\n")

    def run(*arguments, ci="", rc=0, **files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        path = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
        environment = {k: v for k, v in os.environ.items() if k not in ("CI", "GITHUB_ACTIONS", "PYTEST_ADDOPTS")}
        environment |= {"PYTHONPATH": path, "CI": ci} if ci else {"PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-rs", "-s", "-W", "error", "-p", "no:cacheprovider", *arguments, "."],
            cwd=tmp_path, capture_output=True, text=True, env=environment, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_its_name_is_its_path():
    """So that pytest registers it once, whichever way it is named."""
    assert entry_points() == f"{NAME} = {NAME}"


# Fixture and marker, in this very run


def test_xp_is_an_array_module(xp):
    assert xp.__name__ in ("numpy", "cupy")
    assert float(xp.sum(xp.arange(4.0) ** 2)) == 14.0


def test_a_stand_in_is_found_under_the_name_of_cupy(project):
    text = project(
        "--strict-markers",
        conftest=(
            "import sys, types, numpy as np\n"
            "class Device:\n"
            "    __init__ = lambda self, n: None\n"
            "    __enter__ = __exit__ = lambda *a: None\n"
            "runtime = types.SimpleNamespace(getDeviceCount=lambda: 1, driverGetVersion=lambda: 13020)\n"
            "runtime.CUDARuntimeError = RuntimeError\n"
            "cuda = types.SimpleNamespace(runtime=runtime, Device=Device)\n"
            "cupy = sys.modules['cupy'] = types.ModuleType('cupy')\n"
            "cupy.cuda, cupy.asarray, cupy.ndarray = cuda, np.asarray, type('ndarray', (), {})\n"
        ),
        test_xp="def test(xp): print('with', xp.__name__)",
    )
    assert re.findall(r"with (\w+)", text) == ["numpy", "cupy"]
    assert "2 passed" in text


def test_without_a_gpu_tests_are_skipped_with_the_reason_and_hypothesis_is_left_alone(project):
    text = project(
        "--strict-markers",
        conftest="import sys; sys.modules['cupy'] = None",
        test_marks=(
            "import sys, pytest\n"
            "@pytest.mark.gpu\n"
            "def test_gpu(): raise AssertionError\n"
            "def test_xp(xp): print('with', xp.__name__)\n"
            "def test_light(): assert 'hypothesis' not in sys.modules\n"
        ),
    )
    assert "2 passed, 2 skipped" in text
    assert re.findall(r"with (\w+)", text) == ["numpy"]
    assert "needs CuPy" in text


# Profiles


def described(name):
    profile = {"max_examples": 0, "derandomize": False, "verbosity": "normal", **PROFILES[name]}
    return f"profile {profile['max_examples']} {profile['derandomize']} None {profile['verbosity']}"


@pytest.mark.parametrize("ci", ["", "true"])
def test_where_nobody_chooses_hypothesis_is_left_as_it_is(project, ci):
    """Its own profile under CI, where it has one, included."""
    found = [
        re.search("profile .*", project(*without, ci=ci, test_profile=PROFILE))[0]
        for without in ((), ("-p", f"no:{NAME}"))
    ]
    assert found[0] == found[1]
    assert "profile 100 " in found[0]


@pytest.mark.parametrize("name", PROFILES)
def test_a_conftest_may_load_each_by_its_name(project, name):
    conftest = f"from hypothesis import settings\nsettings.load_profile('tinynorm-{name}')"
    assert described(name) in project(conftest=conftest, test_profile=PROFILE)


def test_naming_the_plugin_again_loads_it_once(project):
    listed = (
        "def test(pytestconfig):\n"
        "    names = [name for name, _ in pytestconfig.pluginmanager.list_name_plugin()]\n"
        f"    assert names.count('{NAME}') == 1\n"
    )
    conftest = f"pytest_plugins = ['{NAME}']"
    assert "1 passed" in project("-p", NAME, conftest=conftest, test_listed=listed)


def test_these_very_tests_have_a_profile_of_theirs(request):
    chosen = request.config.getoption("--tinynorm-profile") or ("ci" if os.environ.get("CI") else "dev")
    assert settings.get_current_profile_name() == f"tinynorm-{chosen}"


OWN = """
from hypothesis import settings
settings.register_profile("ci", max_examples=7, deadline=None)
settings.load_profile("ci")
"""


def test_a_profile_of_the_users_own_is_preferred_but_not_to_the_option(project):
    assert "profile 7 " in project(ci="true", conftest=OWN, test_profile=PROFILE)
    assert described("debug") in project("--tinynorm-profile=debug", ci="true")


def test_profiles_differ_in_how_hard_they_try():
    assert PROFILES["debug"]["max_examples"] < PROFILES["dev"]["max_examples"] < PROFILES["intense"]["max_examples"]
    assert PROFILES["ci"]["derandomize"]


def test_without_hypothesis_there_are_no_profiles_and_the_extra_is_named(project):
    """Without hypothesis' own plugin, too, which then is not installed either."""
    blocked = "import sys\nsys.modules['hypothesis'] = None\n"
    arguments = ["-p", "no:hypothesispytest"]
    assert "1 passed" in project(*arguments, conftest=blocked, test_it="def test(): pass")
    text = project(*arguments, "--tinynorm-profile=dev", rc=pytest.ExitCode.USAGE_ERROR)
    assert re.search(r"--tinynorm-profile: hypothesis .*pip install 'tinynorm\[test\]'", text)
