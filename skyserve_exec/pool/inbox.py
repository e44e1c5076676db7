"""What came in since the last commit: it stays here until the transaction that books it has succeeded.

Room: serve. Plain data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from skyserve_exec.messages import Cancel, HandOff, Submit
from skyserve_exec.pool.http_children import HttpChild
from skyserve_exec.pool.running import Running
from skyserve_exec.pool.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Ending:
    """A running request that ends, or runs again, as decided."""

    running: Running
    verdict: Verdict
    peak_rss: int | None = None


@dataclass(slots=True)
class Inbox:
    """In the order of arrival within each kind."""

    submits: list[tuple[HttpChild, Submit]] = field(default_factory=list)
    cancels: list[tuple[HttpChild, Cancel]] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    hand_offs: list[tuple[Running, HandOff]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.submits or self.cancels or self.endings or self.hand_offs)
