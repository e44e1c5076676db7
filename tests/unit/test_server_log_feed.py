"""Log feeds on real files: sharing, watching, polling, tails."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skyserve_exec.errors import Unavailable
from skyserve_exec.server.file_watch import FileWatch
from skyserve_exec.server.log_feed import CHUNK_BYTES, LogFeeds
from skyserve_exec.server.log_tail import tail_offset
from skyserve_exec.server.turns import FEW, Turns
from skyserve_exec.system.fds import open_descriptors

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file on a disk, and one where reads that never wait are not supported by every kernel."""
    if request.param == "disk":
        yield tmp_path / "x.log"
        return
    if not SHARED_MEMORY.is_dir():
        pytest.skip("no shared memory here")
    path = SHARED_MEMORY / f"skyserve-test-{os.getpid()}-{random.randrange(1 << 32)}.log"
    yield path
    path.unlink(missing_ok=True)


def run(test: Callable[[LogFeeds], Awaitable[None]]) -> None:
    """Runs it on a loop; afterwards every descriptor of it is closed again."""

    async def main() -> None:
        with ThreadPoolExecutor(2) as disk:
            before = open_descriptors()
            feeds = LogFeeds(disk)
            await test(feeds)
            assert len(feeds) == 0
            feeds.close()
            left = [str(Path(f"/proc/self/fd/{number}").readlink()) for number in open_descriptors() - before]
            assert not [name for name in left if name.endswith(".log") or "inotify" in name]

    asyncio.run(main())


def test_followers_at_one_place_share_what_is_read(place: Path) -> None:
    async def test(feeds: LogFeeds) -> None:
        place.write_bytes(b"a" * (CHUNK_BYTES + 10))
        first, second = await asyncio.gather(feeds.open(place, create=False), feeds.open(place, create=False))
        assert first is second
        chunk = await first.read(0)
        assert await second.read(0) is chunk
        assert len(chunk.data) == CHUNK_BYTES
        short = await first.read(CHUNK_BYTES)
        assert (short.data, short.end) == (b"a" * 10, CHUNK_BYTES + 10)
        assert (await first.read(CHUNK_BYTES + 10)).data == b""
        feeds.leave(first, print)
        assert (await second.read(5)).data == b"a" * CHUNK_BYTES
        feeds.leave(second, print)

    run(test)


def test_followers_are_woken_and_read_on(place: Path) -> None:
    async def test(feeds: LogFeeds) -> None:
        feed, again = await feeds.open(place, create=True), await feeds.open(place, create=True)
        wakes = [asyncio.Event() for _ in range(60)]
        for wake in wakes:
            feeds.follow(feed, wake.set)
        for number in range(3):
            with place.open("ab") as file:
                file.write(b"%d" % number)
            async with asyncio.timeout(5):
                await asyncio.gather(*(wake.wait() for wake in wakes))
            assert (await feed.read(0)).data == b"0123"[: number + 1]
            for wake in wakes:
                wake.clear()
        assert await feed.size() == 3
        for wake in wakes[1:]:
            feed.wakes.remove(wake.set)
        feeds.leave(feed, wakes[0].set)
        feeds.leave(again, print)

    run(test)


def test_a_file_that_cannot_be_watched_is_polled(tmp_path: Path) -> None:
    """Its name is gone, so the kernel has nothing to watch; the open file still grows."""

    async def main() -> None:
        path = tmp_path / "x.log"
        with path.open("ab") as writer, path.open("rb") as reader, ThreadPoolExecutor(1) as disk:
            path.unlink()
            grown = asyncio.Event()
            watch = FileWatch(disk)
            watch.add(path, reader.fileno(), grown.set)
            for _ in range(3):
                grown.clear()
                writer.write(b"more")
                writer.flush()
                async with asyncio.timeout(5):
                    await grown.wait()
            watch.remove(reader.fileno())
            watch.close()

    asyncio.run(main())


def test_a_file_whose_name_goes_away_is_still_followed(tmp_path: Path) -> None:
    async def test(feeds: LogFeeds) -> None:
        path, wake = tmp_path / "x.log", asyncio.Event()
        feed = await feeds.open(path, create=True)
        feeds.follow(feed, wake.set)
        with path.open("ab") as writer:
            path.unlink()
            writer.write(b"late")
            writer.flush()
            async with asyncio.timeout(5):
                while (await feed.read(0)).data != b"late":
                    await wake.wait()
        feeds.leave(feed, wake.set)

    run(test)


def test_logs_that_are_not_there_or_not_files(tmp_path: Path) -> None:
    async def test(feeds: LogFeeds) -> None:
        feed = await feeds.open(tmp_path / "none.log", create=False)
        assert (await feed.read(0)).data == b""
        assert await feed.size() == 0
        assert await tail_offset(feed, 5) == 0
        feeds.leave(feed, print)
        assert not (tmp_path / "none.log").exists()
        made = await feeds.open(tmp_path / "made.log", create=True)
        assert (tmp_path / "made.log").stat().st_mode & 0o777 == 0o600
        feeds.leave(made, print)
        (tmp_path / "link.log").symlink_to("/etc/passwd")
        with pytest.raises(Unavailable, match=r"link\.log"):
            await feeds.open(tmp_path / "link.log", create=False)
        with pytest.raises(Unavailable):
            await feeds.open(tmp_path / "no" / "folder.log", create=True)

    run(test)


def test_tails_are_those_of_tail(tmp_path: Path) -> None:
    made = random.Random(3)

    async def test(feeds: LogFeeds) -> None:
        for number in range(40):
            path = tmp_path / f"{number}.log"
            lines = [b"x" * made.choice([0, 1, 10, 5000, 300_000]) for _ in range(made.randrange(12))]
            content = b"\n".join(lines) + made.choice([b"", b"\n", b"\n\n"])
            path.write_bytes(content)
            feed = await feeds.open(path, create=False)
            for count in (1, 2, 3, 7, 100):
                expected = b"".join(content.splitlines(keepends=True)[-count:]) if content else b""
                assert content[await tail_offset(feed, count) :] == expected
            feeds.leave(feed, print)

    run(test)


def test_turns_let_others_in_between() -> None:
    async def main() -> None:
        order: list[str] = []
        turns, done = Turns(), asyncio.Event()
        turns.add([lambda: order.append("call")] * (FEW * 3))
        turns.add([done.set])
        asyncio.get_running_loop().call_soon(order.append, "other")
        await done.wait()
        assert order.count("call") == FEW * 3
        assert order.index("other") <= FEW * 2

    asyncio.run(main())
