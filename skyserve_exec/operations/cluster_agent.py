"""The job queue of one cluster, as seen from here: one method for each verb of node/agent.py and node/joblog.py.

Room: executor, inside a running operation. Each call is one short process at the cluster's place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyserve_exec import errors
from skyserve_exec.errors import NotFound, SkyserveError, Unavailable
from skyserve_exec.runners.command_runner import CommandRunner, Finished

NODE_PACKAGE = Path(__file__).parent.parent / "node"
LAUNCHER = "import sys\n\nfrom node.{name} import main\n\nsys.exit(main(sys.argv[1:]))\n"
LAUNCHERS = ("agent", "joblog", "scheduler")
VERB_SECONDS = 60.0
REFUSED = 3
KINDS = ("BadInput", "Conflict", "DiskFull", "NotFound", "Unavailable")


@dataclass(frozen=True, slots=True)
class ClusterAgent:
    """`directory` is the cluster's, at the place of `runner`."""

    runner: CommandRunner
    cluster: str
    directory: str

    @property
    def workdir(self) -> str:
        return f"{self.directory}/workdir"

    def install(self) -> None:
        """Brings the agent's files to the cluster, those that differ."""
        files = {f"agent/node/{path.name}": path.read_bytes() for path in sorted(NODE_PACKAGE.glob("*.py"))}
        files |= {f"agent/{name}.py": LAUNCHER.format(name=name).encode() for name in LAUNCHERS}
        self.runner.write_files(self.directory, files)

    def init(self, resources: Mapping[str, Any]) -> dict[str, Any]:
        """Declares what the cluster has, the first time only; what it has: cpus, memory and accelerators."""
        has = dict(self._verb("init", given={"name": self.cluster, **resources})["has"])
        return {"cpus": has.pop("cpus"), "memory": has.pop("memory"), "accelerators": has}

    def submit(self, job: Mapping[str, Any]) -> int:
        """Queues a job; its number.

        Raises:
            BadInput: it needs more than the cluster has.
            Conflict: the cluster is being taken down.
        """
        return int(self._verb("submit", given=job)["job_id"])

    def queue(self, *, only_active: bool = False) -> list[dict[str, Any]]:
        """The jobs, oldest first."""
        return list(self._verb("queue", *(["--active"] if only_active else [])))

    def job(self, number: int) -> dict[str, Any]:
        """One job.

        Raises:
            NotFound: no such job.
        """
        return dict(self._verb("status", str(number))[0])

    def latest_job(self) -> dict[str, Any]:
        """The job that was submitted last.

        Raises:
            NotFound: there is none yet.
        """
        found = self._verb("status")
        if not found:
            raise NotFound(
                f"cluster {self.cluster} has no jobs yet", hint=f"Submit one with: sky exec {self.cluster} …"
            )
        return dict(found[0])

    def counts(self, directories: Sequence[str]) -> dict[str, dict[str, int] | None]:
        """How many jobs run and wait, here and in clusters at the same place; None for one that is damaged."""
        return dict(self._verb("counts", *directories))

    def cancel(self, numbers: Sequence[int], *, everything: bool = False) -> list[int]:
        """Cancels jobs and waits for their ends; those that it cancelled.

        Raises:
            NotFound: no such job; none is cancelled then.
        """
        words = ["--all"] if everything else [str(number) for number in numbers]
        return list(self._verb("cancel", *words)["cancelled"])

    def shutdown(self) -> list[int]:
        """Cancels all jobs and ends every process of the cluster; the jobs that were cancelled."""
        return list(self._verb("shutdown")["cancelled"])

    def tail_offset(self, job: int, lines: int) -> int:
        """The byte of the job's log where its last lines begin."""
        argv = self._log_argv("tail-offset", job, lines=lines)
        return int(self._answer(self.runner.run(argv, timeout=VERB_SECONDS)))

    def print_log(self, job: int, offset: int) -> None:
        """Copies what there is of the job's log to stdout."""
        self.runner.stream(self._log_argv("print", job, offset=offset))

    def follow_argv(self, job: int, offset: int) -> tuple[str, ...]:
        """The command that writes the job's log from that byte on until the job has ended."""
        return self.runner.follow_argv(self._log_argv("follow", job, offset=offset))

    def _log_argv(self, verb: str, job: int, **options: int) -> list[str]:
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return [*self._python("joblog"), verb, "--dir", self.directory, "--job", str(job), *words]

    def _python(self, name: str) -> list[str]:
        # Without site and environment: it starts in half the time and finds nothing but itself.
        return [self.runner.python, "-S", "-E", f"{self.directory}/agent/{name}.py"]

    def _verb(self, verb: str, *words: str, given: Mapping[str, Any] | None = None) -> Any:
        argv = [*self._python("agent"), "--dir", self.directory, verb, *words]
        stdin = json.dumps(given).encode()  # ASCII, whatever the encoding of that place
        return json.loads(self._answer(self.runner.run(argv, stdin=stdin, timeout=VERB_SECONDS, detached=True)))

    def _answer(self, finished: Finished) -> bytes:
        if finished.code == REFUSED:
            error = json.loads(finished.stdout)["error"]
            kind = getattr(errors, error["type"]) if error["type"] in KINDS else SkyserveError
            raise kind(f"cluster {self.cluster}: {error['message']}")
        if finished.code != 0:
            hint = f"If its directory {self.directory} is damaged: sky down {self.cluster}"
            raise Unavailable(f"the job queue of cluster {self.cluster} failed: {finished.last_words}", hint=hint)
        return finished.stdout
