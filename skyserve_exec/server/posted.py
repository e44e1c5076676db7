"""What a POST brings: its body within the limit, and the headers that say how it wants to be answered.

Room: http process, event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from starlette.types import Receive

from skyserve_exec.errors import BadInput, TooLarge
from skyserve_exec.server.answers import ClientGone

BODY_SECONDS = 60.0
MOST_WAIT = 3600.0
MOST_KEY = 255
WAIT = re.compile(r"wait\s*=\s*\"?(\d{1,9}(?:\.\d{0,9})?)\"?\Z")
KEY = re.compile(r"[!-~](?:[ -~]*[!-~])?\Z")


async def read_body(headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> bytes:
    """The whole body.

    Raises:
        TooLarge: it has, or says it has, more than `limit` bytes; no more of it is read.
        BadInput: it does not come to its end in time.
        ClientGone: the client went away.
    """
    length = headers.get(b"content-length")
    if length is not None and int(length) > limit:
        raise _too_large(limit)
    message = await receive()
    if message["type"] != "http.request":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        body = await _read_rest(body, receive, limit)
    if len(body) > limit:
        raise _too_large(limit)
    return body


def wait_seconds(headers: Mapping[bytes, bytes]) -> float:
    """How long `Prefer: wait=SECONDS` wants to wait for the result; 0 without it. Other preferences are ignored.

    Raises:
        BadInput: the value is not a number of seconds.
    """
    given = headers.get(b"prefer")
    if given is None:
        return 0.0
    for part in given.decode("latin-1").split(","):
        word = part.partition(";")[0].strip().lower()
        if word.startswith("wait"):
            match = WAIT.match(word)
            if match is None:
                raise BadInput(f"Prefer: {word[:60]!a} is not wait=SECONDS", hint="For example 'Prefer: wait=30'.")
            return min(float(match[1]), MOST_WAIT)
    return 0.0


def idempotency_key(headers: Mapping[bytes, bytes]) -> str | None:
    """The key under which a repeated POST is the same request.

    Raises:
        BadInput: it is empty, too long or not printable ASCII.
    """
    given = headers.get(b"idempotency-key")
    if given is None:
        return None
    text = given.decode("latin-1").strip()
    if len(text) > MOST_KEY or not KEY.match(text):
        raise BadInput(f"Idempotency-Key: 1 to {MOST_KEY} printable ASCII characters, not {text[:60]!a}")
    return text


async def _read_rest(first: bytes, receive: Receive, limit: int) -> bytes:
    parts, size = [first], len(first)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while size <= limit:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientGone
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        raise BadInput(f"body: it has not come to its end within {BODY_SECONDS:g} s") from None
    raise _too_large(limit)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"body: more than the {limit} bytes that this server takes",
        hint="Send less, or start the server with a larger --max-body-bytes.",
    )
