from __future__ import annotations

from collections.abc import Iterator

import pytest
from portable_system import MISSING, take_away


@pytest.fixture(scope="module", params=["Linux", "Windows"])
def system(request: pytest.FixtureRequest) -> Iterator[None]:
    """The tests of a module on Linux, then with all calls taken away that not every system has."""
    with pytest.MonkeyPatch.context() as patch:
        take_away(patch, MISSING if request.param == "Windows" else ())
        yield
