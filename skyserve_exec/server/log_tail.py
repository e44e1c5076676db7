"""Where the last lines of a log begin, found by reading blocks from its end.

Room: http process, event loop.
"""

from __future__ import annotations

import asyncio

from skyserve_exec.server.log_feed import LogFeed

BLOCK_BYTES = 256 * 1024


async def tail_offset(feed: LogFeed, lines: int) -> int:
    """The offset of the first of the last `lines` lines; a last line without its end counts as one."""
    position = await feed.size()
    missing = lines
    at_end = True
    while position > 0:
        start = max(0, position - BLOCK_BYTES)
        block = await feed.read_block(start, position - start)
        if at_end and block.endswith(b"\n"):
            missing += 1  # the newline at the very end begins no line
        at_end = False
        found = block.count(b"\n")
        if found >= missing:
            return start + _newline_from_end(block, missing) + 1
        missing -= found
        position = start
        await asyncio.sleep(0)  # a log without newlines is long
    return 0


def _newline_from_end(block: bytes, number: int) -> int:
    position = len(block)
    for _ in range(number):
        position = block.rfind(b"\n", 0, position)
    return position
