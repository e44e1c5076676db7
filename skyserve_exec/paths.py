"""Names of the files in a state directory. Directories 0700, files 0600.

Room: every process. No I/O but in `make`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from skyserve_exec.errors import BadInput


@dataclass(frozen=True, slots=True)
class StateDir:
    """One server's private place on disk."""

    root: Path

    @property
    def database(self) -> Path:
        return self.root / "requests.db"

    @property
    def clusters_database(self) -> Path:
        return self.root / "clusters.db"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def clusters(self) -> Path:
        """One directory per local cluster."""
        return self.root / "clusters"

    @property
    def lock(self) -> Path:
        """A kernel lock held for the server's life: the truth about 'is it running'."""
        return self.root / "server.lock"

    @property
    def server_json(self) -> Path:
        """pid, start time, boot id, endpoint, options: information only."""
        return self.root / "server.json"

    @property
    def server_log(self) -> Path:
        return self.root / "server.log"

    @property
    def server_console(self) -> Path:
        """What a server in the background prints past its log, such as why it could not boot."""
        return self.root / "server.console"

    @property
    def token(self) -> Path:
        return self.root / "token"

    def log_of(self, request_id: str) -> Path:
        """Everything the request prints, byte for byte."""
        return self.logs / f"{request_id}.log"

    def make(self) -> None:
        """Creates the directories.

        Raises:
            BadInput: the place cannot be made or written.
        """
        try:
            for directory in (self.root, self.logs, self.clusters):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(self.root, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise BadInput(
                f"state_dir: {self.root} cannot be used: {error.strerror}",
                hint="Choose another one with --state-dir or SKYSERVE_STATE_DIR.",
            ) from None
