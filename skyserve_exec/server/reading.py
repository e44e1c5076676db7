"""Reads of the requests table, in threads: a slow disk or a large result never stops the event loop.

Room: http process; the calls are awaited on the loop, the queries run in reader threads with one connection each.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from skyserve_exec.errors import AmbiguousId, BadInput, NotFound, Unavailable
from skyserve_exec.record import RequestRow
from skyserve_exec.states import Status
from skyserve_exec.store.request_reader import ListQuery, Page, RequestReader, Waiting

READERS = 2
ANSWER_SECONDS = 30.0
FULL_ID = 36
ID_PREFIX = re.compile(r"[0-9a-f-]{1,36}\Z")
Found = TypeVar("Found")


class Reading:
    """The read side of the store."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._readers = threading.local()
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="reader")

    async def get(self, request_id: str) -> RequestRow | None:
        """The row of a full id."""
        return await self._ask(lambda reader: reader.get(request_id))

    async def statuses(self, request_ids: Sequence[str]) -> dict[str, str]:
        """Status per id, in one query; unknown ids are left out."""
        return await self._ask(lambda reader: reader.statuses(request_ids))

    async def page(self, query: ListQuery) -> tuple[Page, dict[str, Waiting]]:
        """One page, and what its pending rows wait for."""
        return await self._ask(lambda reader: _page(reader, query))

    async def waiting(self, row: RequestRow) -> Waiting:
        """What a pending request waits for."""
        return await self._ask(lambda reader: reader.waiting(row))

    async def find(self, given: str | None) -> str:
        """The full id that an id or a prefix means; without one, the latest request.

        Raises:
            BadInput: it is no id.
            NotFound: there is none.
            AmbiguousId: a prefix of several.
        """
        if given is None:
            latest = await self._ask(lambda reader: reader.latest())
            if latest is None:
                raise NotFound("there is no request yet", hint="See 'sky --help' for what can be asked for.")
            return latest
        text = checked_id(given)
        if len(text) == FULL_ID:
            return text
        return _only(text, await self._ask(lambda reader: reader.resolve(text)))

    async def find_all(self, given: Sequence[str]) -> list[str]:
        """The full ids of ids and prefixes; all must be known, or none is answered. Errors as in `find`."""
        texts = [checked_id(each) for each in given]
        found = await self._ask(lambda reader: [reader.resolve(text) for text in texts])
        return [_only(text, ids) for text, ids in zip(texts, found, strict=True)]

    async def row(self, given: str | None) -> RequestRow:
        """The row that an id or a prefix means. Errors as in `find`."""
        request_id = await self.find(given)
        row = await self.get(request_id)
        if row is None:
            raise unknown(request_id)
        return row

    async def _ask(self, question: Callable[[RequestReader], Found]) -> Found:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await loop.run_in_executor(self._pool, self._answer, question)
        except TimeoutError:
            raise Unavailable(
                f"the database has not answered within {ANSWER_SECONDS:g} s",
                hint="Is the disk of the state directory slow or gone?",
            ) from None

    def _answer(self, question: Callable[[RequestReader], Found]) -> Found:
        reader: RequestReader | None = getattr(self._readers, "reader", None)
        if reader is None:
            reader = self._readers.reader = RequestReader(self._path)
        return question(reader)


def checked_id(given: str) -> str:
    """The id or prefix in the form the table has.

    Raises:
        BadInput: it cannot be one.
    """
    text = given.strip().lower()
    if not ID_PREFIX.match(text):
        raise BadInput(
            f"request_id: {given[:60]!a} is not a request id or the beginning of one",
            hint="'sky api status' lists the ids.",
        )
    return text


def unknown(request_id: str) -> NotFound:
    return NotFound(f"request_id: there is no request {request_id}", hint="'sky api status' lists the requests.")


def _page(reader: RequestReader, query: ListQuery) -> tuple[Page, dict[str, Waiting]]:
    page = reader.list(query)
    return page, reader.explain([row for row in page.rows if row.status == Status.PENDING])


def _only(text: str, ids: Sequence[str]) -> str:
    if not ids:
        raise unknown(text)
    if len(ids) > 1:
        shown = ", ".join(each[: max(13, len(text) + 4)] for each in ids[:5])
        raise AmbiguousId(
            f"request_id: {text} is the beginning of several requests: {shown}{', …' if len(ids) > 5 else ''}",
            hint="Give more characters of the id.",
        )
    return ids[0]
