"""The channel between a machine and a script: values in shared memory, which no side writes while the other one reads."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from windfall.wire.script_channel import MAPPED_MAX, ChannelEnded, Message, MessageKind, ScriptChannel

WIDTH = 8


@pytest.fixture
def sides() -> Iterator[tuple[ScriptChannel, ScriptChannel]]:
    """Both sides of a channel."""
    both = [ScriptChannel(one) for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
    for side in both:
        side.width = WIDTH
    yield both[0], both[1]
    for side in both:
        side.close()


def sent(sides: tuple[ScriptChannel, ScriptChannel], rows: int, value: float, *, values: bool = True) -> Message:
    """Send rows with one value everywhere, and return what is received."""
    draft = sides[0].draft(rows, values=values)
    draft.rows[:], draft.values[:] = np.arange(rows), value
    sides[0].send(MessageKind.PUSH, (1, -2, 3), draft)
    return sides[1].receive()


def heard_back(sides: tuple[ScriptChannel, ScriptChannel]) -> None:
    """Send a message the other way: it says what is not in use any more."""
    sides[1].send(MessageKind.DONE)
    sides[0].receive()


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 100_000])
def test_a_message_arrives_as_it_was_written(sides: tuple[ScriptChannel, ScriptChannel], rows: int) -> None:
    """Whatever its size."""
    message = sent(sides, rows, 1.5)

    assert (message.kind, message.numbers) == (MessageKind.PUSH, (1, -2, 3))
    assert np.array_equal(message.rows, np.arange(rows))
    assert np.array_equal(message.values, np.full((rows, WIDTH), 1.5, np.float32))


def test_rows_come_without_values_and_messages_without_either(sides: tuple[ScriptChannel, ScriptChannel]) -> None:
    """A pull has rows alone."""
    asked = sent(sides, 5, 0.0, values=False)
    sides[0].send(MessageKind.DONE)
    done = sides[1].receive()

    assert (asked.rows.tolist(), asked.values.shape) == ([0, 1, 2, 3, 4], (0, WIDTH))
    assert (done.rows.shape, done.values.shape) == ((0,), (0, WIDTH))


@pytest.mark.parametrize("rows", [100, 100_000])
def test_an_array_that_is_in_use_is_not_written_though_only_a_view_of_it_is_left(
    sides: tuple[ScriptChannel, ScriptChannel], rows: int
) -> None:
    """What comes later is elsewhere."""
    view = sent(sides, rows, 1.0).values[3:5].T.reshape(-1)[::2]
    kept = sent(sides, rows, 2.0).rows[1:]
    for value in range(3, 9):
        heard_back(sides)
        sent(sides, rows, float(value))

    assert set(view.tolist()) == {1.0}
    assert kept.tolist() == list(range(1, rows))


def test_memory_is_used_again_once_it_is_not_in_use(sides: tuple[ScriptChannel, ScriptChannel]) -> None:
    """Two buffers suffice for a stream of messages, and a larger one takes the place of those."""
    files = len(os.listdir("/proc/self/fd"))
    for value in range(50):
        sent(sides, 20_000, float(value))
        heard_back(sides)
    small = len(sides[0]._buffers), len(sides[1]._theirs)
    for value in range(50):
        sent(sides, 100_000, float(value))
        heard_back(sides)

    assert max(small) <= 2
    assert max(len(sides[0]._buffers), len(sides[1]._theirs)) <= 2
    # Each side has a file for each buffer.
    assert len(os.listdir("/proc/self/fd")) <= files + 4


def test_a_draft_that_is_not_sent_leaves_its_memory_to_the_next_one(
    sides: tuple[ScriptChannel, ScriptChannel],
) -> None:
    """Whether the other side has seen that memory or not."""
    for _ in range(3):
        sides[0].discard(sides[0].draft(10, values=True))
    sides[0].discard(sides[0].draft(100_000, values=True))

    assert sent(sides, 20, 4.0).values.sum() == 4.0 * 20 * WIDTH
    assert len(sides[0]._buffers) == 1


@pytest.mark.parametrize("rows", [10, 10_000])
def test_arrays_that_are_kept_by_the_thousand_need_few_open_files(
    sides: tuple[ScriptChannel, ScriptChannel], rows: int
) -> None:
    """Small ones are copied, and so are large ones once there are many."""
    files = len(os.listdir("/proc/self/fd"))
    kept = []
    for value in range(1000):
        kept.append(sent(sides, rows, float(value)).values[:, 0])
        heard_back(sides)

    assert len(os.listdir("/proc/self/fd")) <= files + 2 * (MAPPED_MAX + 2)
    assert [one[-1] for one in kept] == list(range(1000))


def test_either_side_sees_the_end_of_the_other(sides: tuple[ScriptChannel, ScriptChannel]) -> None:
    """When it receives, and when it sends."""
    sides[0].close()

    with pytest.raises(ChannelEnded):
        sides[1].receive()
    with pytest.raises(ChannelEnded):
        sides[1].send(MessageKind.DONE)
