from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from skyserve_exec.messages import Leave, Message, Run, Spawned, SpawnExecutor, encode
from skyserve_exec.system.channel import LENGTH, MAX_FRAME, Channel, ChannelClosed
from tests.waiting import wait_until

Pair = tuple[Channel, Channel]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = (Channel(sock) for sock in socket.socketpair())
    yield left, right
    left.close()
    right.close()


def big(number: int, size: int = 300_000) -> Run:
    return Run(f"request {number}", "echo", "x" * size, 1, "/log", "user")


def collect(channel: Channel, count: int, sender: Channel | None = None) -> list[Message]:
    """The next messages; `sender` writes what waits in its outbox meanwhile."""
    found: list[Message] = []

    def complete() -> bool:
        if sender is not None:
            sender.flush()
        found.extend(channel.receive())
        return len(found) >= count

    wait_until(complete, what=f"{count} messages arrive")
    return found


def test_messages_arrive_whole_and_in_order(pair: Pair) -> None:
    left, right = pair
    sent = [Spawned(number, number) for number in range(1000)]
    for message in sent:
        left.send(message)
    assert collect(right, 1000, sender=left) == sent
    assert right.receive() == []


def test_both_directions_are_independent(pair: Pair) -> None:
    left, right = pair
    left.send(Spawned(1, 1))
    right.send(Spawned(2, 2))
    assert collect(left, 1) == [Spawned(2, 2)]
    assert collect(right, 1) == [Spawned(1, 1)]


def test_send_does_not_block_and_the_rest_waits_in_the_outbox(pair: Pair) -> None:
    left, right = pair
    sent = [big(number) for number in range(20)]
    for message in sent:
        left.send(message)
    assert left.wants_write
    assert 0 < left.outbox_bytes <= sum(len(encode(message)) + LENGTH.size for message in sent)
    assert collect(right, len(sent), sender=left) == sent
    assert left.outbox_bytes == 0
    assert not left.wants_write


def test_a_frame_may_come_byte_by_byte(pair: Pair) -> None:
    left, right = pair
    data = encode(Spawned(3, 4))
    for byte in LENGTH.pack(len(data)) + data:
        assert right.receive() == []
        left.sock.send(bytes([byte]))
    assert right.receive() == [Spawned(3, 4)]


def test_what_was_sent_before_the_end_still_arrives(pair: Pair) -> None:
    left, right = pair
    left.send(Spawned(1, 1))
    left.close()
    assert right.receive() == [Spawned(1, 1)]
    with pytest.raises(ChannelClosed):
        right.receive()


def test_half_a_frame_before_the_end_is_an_end(pair: Pair) -> None:
    left, right = pair
    left.sock.send(LENGTH.pack(100) + b"half")
    left.close()
    assert right.receive() == []
    with pytest.raises(ChannelClosed):
        right.receive()


def test_sending_to_nobody_is_an_end_and_no_signal(pair: Pair) -> None:
    left, right = pair
    right.close()
    with pytest.raises(ChannelClosed):
        left.send(Leave())


def test_an_absurd_length_is_an_end(pair: Pair) -> None:
    left, right = pair
    left.sock.send(LENGTH.pack(MAX_FRAME + 1))
    with pytest.raises(ChannelClosed, match=f"{MAX_FRAME + 1} bytes"):
        right.receive()


def test_flush_blocking_gets_rid_of_everything(pair: Pair) -> None:
    left, right = pair
    sent = [big(number) for number in range(10)]
    for message in sent:
        left.send(message)
    found: list[Message] = []
    reader = threading.Thread(target=lambda: found.extend(collect(right, len(sent))))
    reader.start()
    left.flush_blocking()
    assert not left.wants_write
    reader.join(10)
    assert found == sent
    assert left.sock.getblocking() is False


def test_a_descriptor_travels_with_its_own_frame() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    read_end, write_end = os.pipe()
    first, second = Spawned(1, 1), SpawnExecutor(2, "short-0")
    channel.send(first)
    channel.send(second, write_end)
    os.close(write_end)
    frames: list[tuple[bytes, list[int]]] = []
    for message in (first, second):
        size = LENGTH.size + len(encode(message))
        data, descriptors, _, _ = socket.recv_fds(theirs, size, 4)
        frames.append((data[LENGTH.size :], descriptors))
    assert [data for data, _ in frames] == [encode(first), encode(second)]
    assert frames[0][1] == []
    (passed,) = frames[1][1]
    os.write(passed, b"through")
    os.close(passed)
    assert os.read(read_end, 100) == b"through"
    os.close(read_end)
    channel.close()
    theirs.close()


def test_a_descriptor_waits_for_what_was_sent_before_it(pair: Pair) -> None:
    left, right = pair
    sent: list[Message] = [big(number) for number in range(10)]
    for message in sent:
        left.send(message)
    assert left.wants_write
    found: list[Message] = []
    reader = threading.Thread(target=lambda: found.extend(collect(right, len(sent) + 1)))
    reader.start()
    with open(os.devnull) as null:
        left.send(SpawnExecutor(1, "long-0"), null.fileno())
    reader.join(10)
    assert found == [*sent, SpawnExecutor(1, "long-0")]
