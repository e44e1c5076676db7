"""A full disk under the job queue: nothing is lost, and it goes on by itself when there is space again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.cluster_node import cluster_node
from tests.waiting import stays_so

IN_A_SMALL_DISK = 'mount -t tmpfs -o size=1m none "$0" && exec "$@"'


def test_a_full_disk_loses_no_job_and_no_exit_code(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    unshare = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*unshare, IN_A_SMALL_DISK, str(disk), "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mounts of one's own here")
    scenario = [sys.executable, "-m", "tests.process.test_agent_full_disk", str(disk)]
    done = subprocess.run([*unshare, IN_A_SMALL_DISK, str(disk), *scenario], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def scenario(disk: Path) -> None:
    with cluster_node(disk / "box") as node:
        go = disk.parent / "go"
        first = node.submit(f"echo up; while [ ! -e {go} ]; do sleep 0.02; done; exit 4", cpus=4)
        second = node.submit("exit 5")
        node.wait_for_log(first, b"up")
        filling = disk / "filling"
        with contextlib.suppress(OSError), filling.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        assert node.verb("submit", given={"run": "true"})["error"]["type"] == "DiskFull"
        go.touch()
        stays_so(lambda: node.job(second)["status"] == "PENDING", seconds=1.5, what="the second waits for space")
        filling.unlink()
        assert node.wait_for(first)["exit_code"] == 4
        assert node.wait_for(second)["exit_code"] == 5


if __name__ == "__main__":
    scenario(Path(sys.argv[1]))
