"""Python runs this at its start where PYTHONPATH names its directory."""

import brood_reseed

brood_reseed.install()
