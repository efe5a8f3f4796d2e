"""Cutting a byte stream into frames, with the limit held before accumulation."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbus import limits
from agentbus.errors import TooLargeError
from agentbus.protocol.frames import FrameBuffer, FrameTooLargeError


def test_two_frames_in_one_piece_come_out_as_two() -> None:
    assert FrameBuffer().feed(b"one\ntwo\n") == [b"one", b"two"]


def test_one_byte_at_a_time_gives_the_same_frames() -> None:
    buffer = FrameBuffer()
    frames = [frame for byte in b"one\ntwo\n" for frame in buffer.feed(bytes([byte]))]
    assert frames == [b"one", b"two"]
    assert buffer.pending_bytes == 0


def test_incomplete_frame_is_kept_until_its_newline() -> None:
    buffer = FrameBuffer()
    assert buffer.feed(b"first\nsec") == [b"first"]
    assert buffer.pending_bytes == 3
    assert buffer.feed(b"ond\nth") == [b"second"]
    assert buffer.pending_bytes == 2


def test_empty_lines_and_carriage_returns_are_tolerated() -> None:
    assert FrameBuffer().feed(b"\n\r\none\r\n\n\ntwo\n") == [b"one", b"two"]


def test_carriage_return_split_from_its_newline_is_removed() -> None:
    buffer = FrameBuffer()
    assert buffer.feed(b"one\r") == []
    assert buffer.feed(b"\n") == [b"one"]


def test_carriage_return_inside_a_frame_is_kept() -> None:
    assert FrameBuffer().feed(b"a\rb\n") == [b"a\rb"]


@pytest.mark.parametrize("size_bytes", [limits.FRAME_BYTES - 1, limits.FRAME_BYTES])
def test_frame_up_to_the_limit_passes(size_bytes: int) -> None:
    frame = b"x" * size_bytes
    assert FrameBuffer().feed(frame + b"\n") == [frame]


def test_frame_one_byte_over_the_limit_is_refused_with_its_newline() -> None:
    with pytest.raises(TooLargeError):
        FrameBuffer().feed(b"x" * (limits.FRAME_BYTES + 1) + b"\n")


def test_frame_one_byte_over_the_limit_is_refused_before_its_newline() -> None:
    buffer = FrameBuffer()
    assert buffer.feed(b"x" * limits.FRAME_BYTES) == []
    with pytest.raises(TooLargeError):
        buffer.feed(b"x")


def test_limit_is_counted_over_all_pieces_of_a_frame() -> None:
    buffer = FrameBuffer(limit_bytes=10)
    assert buffer.feed(b"12345") == []
    assert buffer.feed(b"67890") == []
    assert buffer.feed(b"\n") == [b"1234567890"]
    assert buffer.feed(b"12345") == []
    with pytest.raises(TooLargeError):
        buffer.feed(b"678901\n")


def test_frames_before_the_oversized_one_are_not_lost() -> None:
    with pytest.raises(FrameTooLargeError) as caught:
        FrameBuffer(limit_bytes=4).feed(b"one\ntwo\nthree\n")
    assert caught.value.frames == [b"one", b"two"]
    assert caught.value.code == "too_large"


def test_endless_line_takes_bounded_memory() -> None:
    buffer = FrameBuffer(limit_bytes=limits.MIB)
    piece_bytes = 64 * limits.KIB

    def endless() -> None:
        while True:
            buffer.feed(b"x" * piece_bytes)

    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError):
            endless()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < limits.MIB + 4 * piece_bytes
    assert buffer.pending_bytes == 0


@given(
    frames=st.lists(st.binary(min_size=1).map(lambda b: b.replace(b"\n", b"n") + b"."), max_size=8),
    cuts=st.lists(st.integers(min_value=1, max_value=7), min_size=1, max_size=8),
)
def test_frames_do_not_depend_on_how_the_stream_is_cut(
    frames: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(frame + b"\n" for frame in frames)
    buffer = FrameBuffer()
    found: list[bytes] = []
    position = turn = 0
    while position < len(stream):
        size_bytes = cuts[turn % len(cuts)]
        found += buffer.feed(stream[position : position + size_bytes])
        position += size_bytes
        turn += 1
    assert found == frames
