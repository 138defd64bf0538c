"""A pytest plugin: the fixture `xp`, the marker `gpu`, and hypothesis profiles.

It is there wherever tinynorm is installed (elsewhere: ``pytest -p tinynorm.testing.plugin``).

- `xp` is an array module: a test that takes it runs with NumPy, and again with CuPy.
- `gpu` marks a test that needs CuPy and a GPU. Without them it is skipped, with the reason.
- ``--tinynorm-profile`` chooses how hard hypothesis tries: `dev`; `ci`, which takes the same examples in every run;
  `intense`, many; `debug`, few, each of them printed. Where nobody chooses, hypothesis keeps the profile that it has.
  A conftest.py may load one of these by the name ``tinynorm-dev`` and so on, which no other profile has.

Hypothesis need not be installed, and is not imported before somebody uses it.
"""

import importlib
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from typing import Any

import pytest

PROFILES: dict[str, dict[str, Any]] = {
    "ci": {"max_examples": 50, "derandomize": True, "print_blob": True},
    "dev": {"max_examples": 50},
    "intense": {"max_examples": 1000},
    "debug": {"max_examples": 5, "verbosity": "verbose"},
}
"""None has a deadline besides: a machine may be slow for reasons of its own."""

PREFIX = "tinynorm-"  #: of their names, so that nobody's own profile `ci` is replaced, hypothesis' included


def array_module(request: pytest.FixtureRequest) -> Any:
    """NumPy; and CuPy, or what stands in for it under that name, where it and a GPU are present."""
    return importlib.import_module(request.param)


xp = pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])(array_module)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the option, and wait for hypothesis. Where it has been imported already, that somebody has its profiles."""
    parser.getgroup("tinynorm").addoption(
        "--tinynorm-profile", choices=list(PROFILES), help="how hard hypothesis tries (default: as it does by itself)"
    )
    if "hypothesis" not in sys.modules:
        sys.meta_path.insert(0, AfterHypothesis())


def pytest_configure(config: pytest.Config) -> None:
    """Explain the marker, and load the profile that was asked for."""
    config.addinivalue_line("markers", "gpu: needs CuPy and a GPU; skipped without them")
    chosen = config.getoption("--tinynorm-profile")
    if chosen is not None:
        from ..errors import MissingExtraError

        try:
            register_profiles()
            sys.modules["hypothesis"].settings.load_profile(PREFIX + chosen)
        except MissingExtraError as error:
            raise pytest.UsageError(f"--tinynorm-profile: {error}") from None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu") is not None:
        from ..backend import why_no_device

        reason = why_no_device()
        if reason is not None:
            pytest.skip(reason)


def register_profiles() -> None:
    """Make the profiles known to hypothesis."""
    from ..extras import optional

    hypothesis = optional("hypothesis", "test")
    for name, given in PROFILES.items():
        values = {k: hypothesis.Verbosity[v] if k == "verbosity" else v for k, v in given.items()}
        default = hypothesis.settings.get_profile("default")
        hypothesis.settings.register_profile(PREFIX + name, default, deadline=None, **values)


class AfterHypothesis(MetaPathFinder, Loader):
    """Registers the profiles as soon as hypothesis is imported: before any conftest.py can load one of its own."""

    loader: Any  #: hypothesis' own

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Where hypothesis is found without this finder; None for any other module."""
        if name != "hypothesis":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        """As hypothesis' own loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Run hypothesis' own loader, leave it in its place, and register."""
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        register_profiles()
