"""What serve listens to: one selector over signals and every channel, and who is behind each.

Room: serve, main thread. `listen` is the only place where serve waits.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from dataclasses import dataclass, field

from skyserve_exec.messages import Message
from skyserve_exec.system.channel import Channel, ChannelClosed
from skyserve_exec.system.signals import SignalBox

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


@dataclass(frozen=True, slots=True)
class Speaker:
    """A channel and what to do with a message from it."""

    channel: Channel
    hear: Callable[[Message], None]


@dataclass(slots=True)
class Ears:
    """Registered channels; forgets the closed ones by itself."""

    signals: SignalBox
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    speakers: dict[int, Speaker] = field(default_factory=dict)  # by descriptor

    def __post_init__(self) -> None:
        self.selector.register(self.signals.fileno(), READ)

    def add(self, channel: Channel, hear: Callable[[Message], None]) -> None:
        speaker = Speaker(channel, hear)
        self.speakers[channel.fileno()] = speaker
        self.selector.register(channel.fileno(), READ, speaker)

    def drop(self, channel: Channel) -> None:
        """Before a channel is closed: its number may be another's at once."""
        if self.speakers.pop(channel.fileno(), None) is not None:
            self.selector.unregister(channel.fileno())

    def listen(self, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
        """Waits until somebody speaks, room to write comes, a signal comes, or the time is over."""
        for speaker in self.speakers.values():
            self._set_interest(speaker)
        return self.selector.select(max(0.0, seconds))

    def hear(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        """Passes on everything that was said."""
        for key, events in ready:
            speaker = self.speakers.get(key.fd)
            if speaker is None or key.data is not speaker:
                continue  # the signals, or a channel that was dropped while this list was worked off
            if events & WRITE:
                self._flush(speaker)
            if events & READ:
                self.hear_one(speaker)

    def hear_out(self, channel: Channel) -> None:
        """Passes on what a channel's dead owner still said."""
        speaker = self.speakers.get(channel.fileno())
        while speaker is not None and self.hear_one(speaker):
            pass

    def hear_one(self, speaker: Speaker) -> bool:
        """False when nothing more can come."""
        try:
            messages = speaker.channel.receive()
        except ChannelClosed:
            self.drop(speaker.channel)
            return False
        for message in messages:
            speaker.hear(message)
        return bool(messages)

    def close(self) -> None:
        self.selector.close()

    def _set_interest(self, speaker: Speaker) -> None:
        key = self.selector.get_key(speaker.channel.fileno())
        wanted = READ | WRITE if speaker.channel.wants_write else READ
        if key.events != wanted:
            self.selector.modify(speaker.channel.fileno(), wanted, speaker)

    def _flush(self, speaker: Speaker) -> None:
        try:
            speaker.channel.flush()
        except ChannelClosed:
            return  # the next read says so as well
