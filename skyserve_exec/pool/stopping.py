"""The ladder down: how far a stop has come, and until when each step may take.

    drain ──no executor and no tail left, or all killed──▶ farewell ──http and spawner gone──▶ gone

Room: serve. Decides; the supervisor does.
"""

from __future__ import annotations

from dataclasses import dataclass

FAREWELL_SECONDS = 4.0  # http finishes its streams, the spawner ends what is left


@dataclass(slots=True)
class Stopping:
    """A stop that has begun. Times are monotonic seconds."""

    why: str
    begun_at: float
    kill_at: float
    farewell_until: float | None = None
    exit_code: int = 0

    def hurry(self, now: float) -> None:
        """A second signal shortens the deadlines and never skips the killing."""
        self.kill_at = min(self.kill_at, now)
        if self.farewell_until is not None:
            self.farewell_until = min(self.farewell_until, now)
