"""How hard hypothesis tries in these tests, where ``--tinynorm-profile`` does not say; and a fixture."""

import os

import pytest
from hypothesis import settings

import tinynorm as tn

settings.load_profile("tinynorm-ci" if os.environ.get("CI") else "tinynorm-dev")


@pytest.fixture
def restored():
    """For tests that set the number of threads."""
    before = tn.get_num_threads()
    yield
    tn.set_num_threads(before)
