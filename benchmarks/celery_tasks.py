"""The module that Celery's processes and its submitter import.

Room: Celery's processes. `celery -A` wants an app in a module, so this one is made at import, from the environment.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

BROKER = "BENCHMARK_BROKER"


def make_app(broker: str) -> Any:
    """Celery as it is shipped, Redis for queue and results; the no-op is `app.tasks["noop"]`."""
    made = Celery("benchmark", broker=broker, backend=broker)
    made.conf.broker_connection_retry_on_startup = True
    made.task(name="noop")(nothing)
    made.finalize()
    return made


def nothing() -> int:
    """The no-op; a number as in the other contestants."""
    return 1


if BROKER in os.environ:
    app = make_app(os.environ[BROKER])
