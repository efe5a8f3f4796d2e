"""The desk of the person who owns the bus: what to decide, requests to send, answers to read.

Owns the session that a person speaks from and a reader of its own, on its own thread. Never decides
anything: a decision, like every other change, is the ledger's. Agents cannot get here: no tool
leads to these requests, and `attach` refuses the names of people.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from typing import Any, assert_never

from actors.base import Address, BusActor, Reply
from actors.human_desk_messages import HumanDeskMessage, PersonAsked
from actors.issued_session import IssuedSession
from actors.issued_session_messages import SessionIssued, WriteDone, WriteRefused
from actors.messages import LedgerMessage, Submit
from agentbus.config import Config
from agentbus.errors import NotFoundError, TooLargeError, UnavailableError
from agentbus.identity import SessionIdentity
from agentbus.ids import InterventionId, MessageId
from agentbus.limits import HUMAN_PREFIX, KIB
from agentbus.protocol.people import (
    HumanDecide,
    HumanList,
    HumanReplies,
    HumanSend,
    HumanShow,
    Requests,
)
from agentbus.rules.receipts import digest, payload_of
from agentbus.store.peer.changes import Decide, MarkShown, PeerMutation
from agentbus.store.peer.people import PeopleReader
from agentbus.store.peer.reading import Attached

APPLICATION = "human"
CONVERSATION = "commands"
"""One session for all commands of a person, so that a key or an answer belongs to none of them."""


def person_of_this_process() -> str:
    """The agent name of the OS user that the daemon runs as, who alone can open its socket."""
    user_id = os.getuid()
    try:
        return HUMAN_PREFIX + pwd.getpwuid(user_id).pw_name
    except KeyError:  # as in a container, where nobody gave the user a name
        return f"{HUMAN_PREFIX}{user_id}"


class HumanDeskActor(BusActor[HumanDeskMessage]):
    """Serves the commands `agentbus-admin human` and `requests`.

    1. Reads are answered at once, in every state of the bus.
    2. What a person is shown counts as seen when it has been answered, not before.
    """

    def __init__(
        self,
        open_store: Callable[[], PeopleReader],
        attached: Callable[[], Attached],
        ledger: Address[LedgerMessage],
        config: Config,
        person: str,
    ) -> None:
        super().__init__()
        self._open_store = open_store
        self._attached = attached
        self._ledger = ledger
        self._config = config
        self._person = person
        self._store: PeopleReader
        identity = SessionIdentity(APPLICATION, CONVERSATION)
        self._session = IssuedSession(person, identity, ledger, self.address)

    def on_start(self) -> None:
        self._store = self._open_store()

    def on_stop(self) -> None:
        self._store.close()
        self._session.end(UnavailableError("the bus is stopping; try again when it runs"))

    def on_failure(self, *_: object) -> None:
        self.on_stop()

    def receive(self, message: HumanDeskMessage) -> None:
        match message:
            case PersonAsked():
                self._serve(message)
            case SessionIssued() | WriteDone() | WriteRefused():
                self._session.take(message)
            case _:
                assert_never(message)

    def _serve(self, asked: PersonAsked) -> None:
        request, reply_to = asked.request, asked.reply_to
        match request:
            case HumanList(decided, limit):
                read = (
                    self._store.decided_interventions if decided else self._store.open_interventions
                )
                reply_to.set({"interventions": read(limit)})
            case HumanShow(either_id):
                reply_to.set(self._intervention(either_id))
            case HumanDecide():
                self._decide(request, reply_to)
            case HumanSend():
                self._send(request, reply_to)
            case HumanReplies(limit):
                self._replies(limit, reply_to)
            case Requests(state, agent, limit):
                requests = self._store.requests(state, agent, limit, self._attached())
                reply_to.set({"requests": requests})
            case _:
                assert_never(request)

    def _intervention(self, either_id: str) -> dict[str, Any]:
        intervention = self._store.intervention(either_id)
        if intervention is None:
            raise NotFoundError(
                f"there is no intervention, and no delivery with one, of id {either_id!r}; "
                "agentbus-admin human list shows what there is"
            )
        return intervention

    def _decide(self, request: HumanDecide, reply_to: Reply) -> None:
        decision = Decide(
            InterventionId(request.intervention_id),
            request.version,
            request.action,
            self._person,
            request.instructions,
            request.to,
        )
        self._ledger.tell(Submit(decision, reply_to))

    def _send(self, request: HumanSend, reply_to: Reply) -> None:
        operation = request.operation()
        payload = payload_of(operation)
        limit_bytes = self._config.max_message_kib * KIB
        if len(payload) > limit_bytes:
            raise TooLargeError(
                f"the message takes at least {len(payload)} bytes, the limit is {limit_bytes} "
                "(max_message_kib); shorten it, or send the path of a file"
            )
        self._session.write(
            lambda sender, attachment: PeerMutation(
                operation,
                operation_id=request.idempotency_key,
                fingerprint=digest(payload),
                sender=sender,
                attachment=attachment,
                rate_ok=True,  # a person's hand is slower than any rate
            ),
            reply_to,
        )

    def _replies(self, limit: int, reply_to: Reply) -> None:
        replies = self._store.replies(self._person, limit)
        reply_to.set({"replies": replies})
        shown = tuple(MessageId(reply["message_id"]) for reply in replies if reply["new"])
        if shown:
            self._session.write(lambda sender, attachment: MarkShown(attachment, shown))
