"""One end of a stream socket that carries framed messages, for a loop that must never block.

Room: every process. `send` never blocks: what the socket does not take waits in the outbox until `flush`.
"""

from __future__ import annotations

import socket
import struct
from collections import deque

from skyserve_exec.messages import Message, decode, encode

LENGTH = struct.Struct(">I")
RECEIVE_BYTES = 64 * 1024
JOINED_BYTES = 64 * 1024
MAX_DESCRIPTORS = 8
MAX_FRAME = 256 * 1024 * 1024


class ChannelClosed(Exception):
    """The other end is gone."""


class Channel:
    """Frames on a connected stream socket. Not thread-safe: one owner."""

    def __init__(self, sock: socket.socket, *, takes_descriptors: bool = False) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.descriptors: deque[int] = deque()  # received ones, in the order of the messages they came with
        self._takes_descriptors = takes_descriptors
        self._inbox = bytearray()
        self._outbox: deque[bytes] = deque()
        self.outbox_bytes = 0

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def is_closed(self) -> bool:
        return self.sock.fileno() < 0

    @property
    def wants_write(self) -> bool:
        return bool(self._outbox)

    def post(self, message: Message) -> None:
        """Queues one message for the next `flush`, so that several leave in one system call."""
        data = encode(message)
        self._outbox.append(LENGTH.pack(len(data)) + data)
        self.outbox_bytes += LENGTH.size + len(data)

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Queues one message and writes as much as the socket takes now; a descriptor travels with its first byte.

        Raises:
            ChannelClosed: the other end is gone.
        """
        data = encode(message)
        frame = LENGTH.pack(len(data)) + data
        if descriptor is not None:
            frame = self._send_with(frame, descriptor)
        if frame:
            self._outbox.append(frame)
            self.outbox_bytes += len(frame)
        self.flush()

    def flush(self) -> None:
        """Writes what waits, as far as the socket takes it."""
        try:
            while self._outbox:
                if len(self._outbox) > 1 and self.outbox_bytes < JOINED_BYTES:
                    joined = b"".join(self._outbox)
                    self._outbox.clear()
                    self._outbox.append(joined)
                frame = self._outbox[0]
                sent = self.sock.send(frame)
                self.outbox_bytes -= sent
                if sent < len(frame):
                    self._outbox[0] = frame[sent:]
                else:
                    self._outbox.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            raise ChannelClosed(str(error)) from None

    def receive(self) -> list[Message]:
        """All messages that are complete now; an empty list when none is.

        Raises:
            ChannelClosed: end of file and nothing complete is left.
        """
        closed = False
        try:
            while True:
                chunk = self._receive_chunk()
                if not chunk:
                    closed = True
                    break
                self._inbox += chunk
                if len(chunk) < RECEIVE_BYTES and not self._takes_descriptors:
                    break
        except BlockingIOError:
            pass
        except OSError:
            closed = True
        messages = self._complete()
        if closed and not messages:
            raise ChannelClosed("end of file")
        return messages

    def close(self) -> None:
        self.sock.close()

    def _receive_chunk(self) -> bytes:
        if not self._takes_descriptors:
            return self.sock.recv(RECEIVE_BYTES)
        chunk, descriptors, _flags, _address = socket.recv_fds(self.sock, RECEIVE_BYTES, MAX_DESCRIPTORS)
        self.descriptors.extend(descriptors)
        return chunk

    def _complete(self) -> list[Message]:
        messages: list[Message] = []
        start, inbox = 0, self._inbox
        while len(inbox) - start >= LENGTH.size:
            (size,) = LENGTH.unpack_from(inbox, start)
            if size > MAX_FRAME:
                raise ChannelClosed(f"a frame of {size} bytes")
            if len(inbox) - start - LENGTH.size < size:
                break
            start += LENGTH.size
            messages.append(decode(bytes(inbox[start : start + size])))
            start += size
        if start:
            del inbox[:start]
        return messages

    def _send_with(self, frame: bytes, descriptor: int) -> bytes:
        # Descriptors must go out with the first byte of their own frame, so nothing may wait before them.
        if self._outbox:
            self.flush_blocking()
        self.sock.setblocking(True)
        try:
            sent = socket.send_fds(self.sock, [frame], [descriptor])
        except OSError as error:
            raise ChannelClosed(str(error)) from None
        finally:
            self.sock.setblocking(False)
        return frame[sent:]

    def flush_blocking(self) -> None:
        """Writes everything that waits, however long it takes: only at the end of a process's life."""
        if not self._outbox:
            return
        self.sock.setblocking(True)
        try:
            self.flush()
        finally:
            self.sock.setblocking(False)
