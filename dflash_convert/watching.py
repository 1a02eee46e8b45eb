"""What a caller may see of a long step while it runs."""

from __future__ import annotations


class Watch:
    """Of one step; each method may stay as it is."""

    def begin(self, total: int, phase: str | None = None) -> None:
        """A phase of ``total`` units begins; the step says which units."""

    def update(self, done: int = 1) -> None:
        """So many more are done."""

    def item(self, name: str) -> None:
        """What is being done now, a prompt for example."""


UNSEEN = Watch()
