"""Collections end with an answer or with an error, and leave no watcher behind in the inbox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from actors.base import FutureReply
from actors.inbox_messages import RequestAdvanced
from actors.peer_collects import PeerCollects
from agentbus.errors import NotFoundError, ValidationError
from agentbus.protocol.peer import PeerCollect
from agentbus.store.changes import PruneSlice
from agentbus.store.peer.reading import PeerReader
from tests.actors.post import WITHIN_S, PostOffice, is_open
from tests.probe import Probe
from tests.store.peers import Peer


@pytest.fixture
def owner() -> Iterator[Probe]:
    with Probe() as owner:
        yield owner


@pytest.fixture
def collects(post: PostOffice, sam: Peer, owner: Probe) -> Iterator[PeerCollects]:
    """Those of Sam's attachment."""
    with closing(PeerReader(post.path)) as store:
        yield PeerCollects(
            sam.agent_id,
            post.inboxes,
            owner.address,
            post.timer,
            post.clock,
            lambda message_id: store.collected(sam.agent_id, sam.session_id, message_id, {}),
            lambda: store.consultation_seconds_left(sam.session_id, post.clock.wall_us()),
        )


def test_what_cannot_be_collected_is_not_watched(
    post: PostOffice, sam: Peer, kim: Peer, owner: Probe, collects: PeerCollects
) -> None:
    message_id = sam.send("Kim")["message_id"]
    with pytest.raises(ValidationError, match="no request"):
        collects.begin(1, PeerCollect(message_id), FutureReply())
    post.claim(kim)
    post.settle()
    assert not [one for one in owner.received() if isinstance(one, RequestAdvanced)]


@pytest.fixture
def lee(post: PostOffice) -> Peer:
    return Peer(post, "Lee")


@pytest.mark.parametrize("way", ["cancel", "due", "advanced"])
def test_a_request_that_is_removed_meanwhile_ends_its_collection_with_that(
    post: PostOffice, sam: Peer, kim: Peer, collects: PeerCollects, way: str
) -> None:
    message_id = sam.ask("Kim")["message_id"]
    reply = FutureReply()
    collects.begin(1, PeerCollect(message_id), reply)
    assert is_open(reply)
    for _ in range(2):  # the message, then what is kept of it
        post.done(PruneSlice("messages_by_capacity", 500, free_bytes=10**6))
    getattr(collects, way)(message_id if way == "advanced" else 1)
    with pytest.raises(NotFoundError):
        reply.get(WITHIN_S)
    assert 1 not in collects


@pytest.mark.parametrize(("passed_s", "waits"), [(299, True), (300, False)])
def test_who_may_ask_no_more_waits_no_more_and_is_told_so(
    post: PostOffice,
    sam: Peer,
    kim: Peer,
    lee: Peer,
    collects: PeerCollects,
    passed_s: int,
    waits: bool,
) -> None:
    kim.ask("Sam")
    post.claim(sam)
    message_id = sam.ask(lee.agent)["message_id"]
    post.clock.advance(seconds=passed_s)
    reply = FutureReply()
    collects.begin(1, PeerCollect(message_id), reply)
    assert is_open(reply) is waits
    if waits:
        collects.cancel(1)
    told = reply.get(WITHIN_S)
    assert ("asking others about this task is over" in told["summary"]) is not waits
    assert (told["consultation_seconds_left"] > 0) is waits
