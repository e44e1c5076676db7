"""Following, printing and finding the end of a job's log."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.cluster_node import ClusterNode, cluster_node
from tests.processes import cpu_seconds, rss_of
from tests.waiting import wait_until

WAIT = "while [ ! -e go ]; do sleep 0.02; done"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClusterNode]:
    with cluster_node(tmp_path / "box") as made:
        yield made


class Followed:
    """A follower whose output goes into a file, as a tail session's does."""

    def __init__(self, node: ClusterNode, number: int, offset: int = 0) -> None:
        self.path = node.root / f"followed-{number}-{offset}-{time.monotonic_ns()}"
        words = ("follow", "--dir", str(node.root), "--job", str(number), "--offset", str(offset))
        with self.path.open("ab") as file:
            self.process = subprocess.Popen(
                node.command("joblog", *words), stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    def seen(self) -> bytes:
        return self.path.read_bytes()

    def end(self) -> bytes:
        """Its output, once it has ended well."""
        assert self.process.wait(timeout=30) == 0
        return self.seen()


def test_LG05_everything_printed_is_shown_at_once_also_without_a_newline(node: ClusterNode) -> None:
    number = node.submit(f"for i in $(seq 36); do echo line $i; done; printf 'no newline yet'; {WAIT}; echo; echo end")
    followed = Followed(node, number)
    expected = b"".join(b"line %d\n" % i for i in range(1, 37)) + b"no newline yet"
    wait_until(lambda: followed.seen() == expected, seconds=3, what="all 37 lines are shown")
    (node.root / "workdir/go").touch()
    assert followed.end() == expected + b"\nend\n"


def test_LG10_LG11_bytes_come_as_they_are(node: ClusterNode) -> None:
    odd = rb"\xff\xfe\0 NUL\r10%\r20%\r\n\r\n\033]0;title\007{\"event\": \"end\"}"
    script = "printf '" + r"\377\376\000 NUL\r10%%\r20%%\r\n\r\n\033]0;title\007{\"event\": \"end\"}" + "'"
    number = node.submit(script + "; head -c 300000 /dev/zero | tr '\\0' x")
    assert Followed(node, number).end() == odd.decode("unicode_escape").encode("latin-1") + b"x" * 300_000


def test_LG08_a_large_log_arrives_whole_and_fast(node: ClusterNode) -> None:
    number = node.submit("seq 1 2000000")
    started = time.monotonic()
    followed = Followed(node, number)
    shown = followed.end()
    assert time.monotonic() - started < 5
    expected = hashlib.sha256()
    for start in range(1, 2_000_001, 100_000):
        expected.update(b"".join(b"%d\n" % i for i in range(start, start + 100_000)))
    assert hashlib.sha256(shown).digest() == expected.digest()


def test_following_from_an_offset_gives_exactly_the_rest(node: ClusterNode) -> None:
    number = node.submit("echo 0123456789")
    node.wait_for(number)
    assert Followed(node, number, offset=4).end() == b"456789\n"
    assert Followed(node, number, offset=11).end() == b""
    assert Followed(node, number, offset=99).end() == b""


def test_a_waiting_job_is_followed_from_its_start_to_its_end(node: ClusterNode) -> None:
    first, second = node.submit(WAIT, cpus=4), node.submit("echo ran")
    followed = Followed(node, second)
    node.wait_for(first, "RUNNING")
    (node.root / "workdir/go").touch()
    assert followed.end() == b"ran\n"


def test_following_ends_when_the_job_is_cancelled_and_soon(node: ClusterNode) -> None:
    number = node.submit("echo up; sleep 1000")
    followed = Followed(node, number)
    wait_until(lambda: followed.seen() == b"up\n", what="the output is shown")
    node.verb("cancel", str(number))
    ended = time.time()
    followed.end()
    assert time.time() - ended < 1


def test_a_follower_notices_a_dead_scheduler_and_starts_another(node: ClusterNode) -> None:
    first, second = node.submit(f"echo up; {WAIT}", cpus=4), node.submit("echo second")
    node.wait_for_log(first, b"up")
    node.kill_scheduler()
    followed = Followed(node, second)
    (node.root / "workdir/go").touch()
    assert followed.end() == b"second\n"


def test_a_follower_ends_when_the_cluster_is_gone(node: ClusterNode) -> None:
    number = node.submit("echo up; sleep 1000")
    followed = Followed(node, number)
    wait_until(lambda: followed.seen() == b"up\n", what="the output is shown")
    node.verb("shutdown", "--grace", "0.1")
    followed.end()


def test_LG06_output_is_shown_with_little_lag(node: ClusterNode) -> None:
    number = node.submit("for i in $(seq 40); do date +%s.%N; sleep 0.05; done")
    followed = Followed(node, number)
    lags: list[float] = []
    while followed.process.poll() is None:
        lines = followed.seen().splitlines()
        if len(lines) > len(lags):
            lags.append(time.time() - float(lines[-1]))
        time.sleep(0.002)
    assert len(lags) >= 30
    assert sorted(lags)[-2] < 0.3


def test_an_idle_follower_is_small_and_nearly_free(node: ClusterNode) -> None:
    number = node.submit("echo up; sleep 1000")
    followed = Followed(node, number)
    wait_until(lambda: followed.seen() == b"up\n", what="the output is shown")
    pid = followed.process.pid
    before, at = cpu_seconds([pid]), time.monotonic()
    wait_until(lambda: time.monotonic() - at > 2, what="two seconds have passed")
    assert cpu_seconds([pid]) - before <= 0.02
    assert rss_of(pid) < 12 * 1024 * 1024
    node.verb("cancel", "--all")
    followed.end()


def test_LG29_the_last_lines_of_a_huge_log_are_found_without_reading_it(node: ClusterNode) -> None:
    number = node.submit("true")
    node.wait_for(number)
    log = node.root / "jobs" / str(number) / "run.log"
    with log.open("wb") as file:
        file.truncate(2 << 30)  # sparse: two gigabytes of one line
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"".join(b"line %d\n" % i for i in range(200)))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    offset = tail_offset(node, number, 100)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    with log.open("rb") as file:
        file.seek(offset)
        assert file.read() == b"".join(b"line %d\n" % i for i in range(100, 200))
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


@pytest.mark.parametrize(
    ("text", "lines", "offset"),
    [
        (b"", 3, 0),
        (b"a\nb\nc\n", 2, 2),
        (b"a\nb\nc", 2, 2),
        (b"a\nb\n\n", 2, 2),
        (b"a\nb\nc\n", 3, 0),
        (b"a\nb\nc\n", 9, 0),
        (b"one line without an end", 1, 0),
        (b"\n", 1, 0),
        (b"x" * 300_000 + b"\n" + b"y" * 600_000 + b"\nz\n", 2, 300_001),
        (b"x" * (256 * 1024 - 2) + b"\n" + b"z\n", 1, 256 * 1024 - 1),
        (b"y\n" + b"x" * (256 * 1024 - 1) + b"\n", 1, 2),
    ],
)
def test_where_the_last_lines_begin(node: ClusterNode, text: bytes, lines: int, offset: int) -> None:
    number = node.submit("true")
    node.wait_for(number)
    (node.root / "jobs" / str(number) / "run.log").write_bytes(text)
    assert tail_offset(node, number, lines) == offset


def test_printing_gives_what_there_is_and_does_not_wait(node: ClusterNode) -> None:
    number = node.submit("echo up; sleep 1000")
    node.wait_for_log(number, b"up\n")
    words = ("print", "--dir", str(node.root), "--job", str(number), "--offset", "1")
    assert subprocess.check_output(node.command("joblog", *words), timeout=10) == b"p\n"


def tail_offset(node: ClusterNode, number: int, lines: int) -> int:
    words = ("tail-offset", "--dir", str(node.root), "--job", str(number), "--lines", str(lines))
    return int(subprocess.check_output(node.command("joblog", *words), timeout=30))
