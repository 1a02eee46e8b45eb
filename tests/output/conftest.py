from __future__ import annotations

from collections.abc import Iterator

import pytest
from portable_system import MISSING, take_away

SYSTEMS = {"Linux": (), **{f"without {name}": (name,) for name in MISSING}, "Windows": MISSING}
SYSTEMS["without link"] = ("link", "O_TMPFILE")  # nameless files get their names by links


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test on Linux, without each of its calls, and without all of them."""
    with pytest.MonkeyPatch.context() as patch:
        take_away(patch, SYSTEMS[request.param])
        yield request.param
