"""How large the long tests are: SEMANTIC_TEST_SIZE is 1 for the full numbers, less for a look."""

import os

SIZE = float(os.environ.get("SEMANTIC_TEST_SIZE", "1"))


def sized(full: int, least: int = 1) -> int:
    """Return a share of the full number, but never less than makes sense."""
    return max(least, round(full * SIZE))
