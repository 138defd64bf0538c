"""Settings of the test run."""

import os

from hypothesis import settings

# The same examples on every run in CI; no deadline, since a machine may be slow for reasons of its own.
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("dev", deadline=None, max_examples=50)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
