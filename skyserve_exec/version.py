"""The one place that holds the version; read as text by a running server to notice an upgrade on disk."""

from __future__ import annotations

__version__ = "0.1.0"
