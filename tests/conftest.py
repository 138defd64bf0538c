"""How hard hypothesis tries in these tests, where ``--tinynorm-profile`` does not say."""

import os

from hypothesis import settings

settings.load_profile("tinynorm-ci" if os.environ.get("CI") else "tinynorm-dev")
