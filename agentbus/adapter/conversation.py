"""One conversation of the harness on the bus: its attachment, its prefetch, its requests.

Owns: attaching (again) when a call needs it, retrying for a bounded time, sending reports and
credit, waiting for what arrives. Never: decides what is delivered (prefetch.py), knows the client.
Used in the thread of the event loop only.

A request is retried with the same content, so with the same operation id, while the daemon is
unavailable, the attachment is stale or an outcome is unknown; never after a denial.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentbus.adapter.binding import Binding
from agentbus.adapter.exposures import Exposures
from agentbus.adapter.link import Link
from agentbus.adapter.notices import MemoryNotices
from agentbus.adapter.peer.state import PeerState
from agentbus.adapter.prefetch import Batch, Prefetch, Report
from agentbus.adapter.retry import Retry
from agentbus.adapter.subscription import Held, parse_arrived
from agentbus.errors import BusError, UnavailableError
from agentbus.failpoints import reach
from agentbus.identity import Attachment
from agentbus.protocol.operations import MUTATIONS
from agentbus.transport.async_client import Asked, AsyncClient
from agentbus.transport.client import NoAnswerError

_log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 30.0
_INSPECTION_SLACK_S = 5.0
"""How much longer than its own timeout an inspection may take: it starts, and is ended and reaped.
"""

_ANSWER_SLACK_S = 10.0
"""How much longer than its own wait a pull may take."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What is the same for all conversations of one adapter process."""

    agent: str
    repository: str | None
    harness_pid: int | None
    capabilities: tuple[str, ...] = ()
    """What `--capability` names, beside those of the configuration."""
    presence: bool = True
    """Whether peers see in the directory that it is there."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request of an attachment that was sent."""

    attachment: Attachment
    client: AsyncClient
    request: Asked


Window = Callable[["Conversation"], tuple[int, int]]
"""Messages and bytes of the prefetch window for a conversation that is about to attach."""


class Conversation:
    """See the module. Also the link's `Listener` for its attachment."""

    def __init__(self, link: Link, profile: Profile, binding: Binding, window: Window) -> None:
        self.binding = binding
        self.prefetch = Prefetch()
        self.attachment: Attachment | None = None
        self.display_name = profile.agent
        self.in_flight = 0
        self.has_left = False
        self.empty_waits = 0
        self.notices: list[dict[str, Any]] = []
        """Told in every result until one that carried them was handed off."""
        self.memory_notices = MemoryNotices()
        self.peer = PeerState(self.notify)
        self.on_arrival: Callable[[], None] = lambda: None
        """Called when messages or direct work came."""
        self._link = link
        self._profile = profile
        self._window = window
        self._bus_id: str | None = None
        self._exposures: Exposures | None = None
        self._attaching: asyncio.Task[None] | None = None
        self._attached_when_lost = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._reports: set[asyncio.Task[None]] = set()
        self._pull_number = 0
        self._watchers: set[asyncio.Future[None]] = set()
        if binding.caution is not None:
            self.notices.append({"kind": "identity", "message": binding.caution})

    def reconnected(self) -> None:
        """The connection is back without a call: attach as before, so that prefetch goes on."""
        if self._attached_when_lost:
            self._attached_when_lost = False
            self._spawn(self._attach_quietly())

    def proven(self, binding: Binding) -> None:
        """The same conversation, now known from this evidence: the best of the newest call."""
        self.binding = binding
        if binding.caution is None:
            self.notices = [notice for notice in self.notices if notice["kind"] != "identity"]

    def leave(self) -> None:
        """The harness says that it has ended: release the attachment, and do not come back.

        Whoever ends a call of it that was under way calls this again: it may have attached anew.
        """
        self.has_left = True
        self.peer.forget()
        attachment, self.attachment = self.attachment, None
        self._attached_when_lost = False
        if attachment is not None:
            with suppress(BusError):  # without a connection there is nothing to release
                self._spawn(self._left(self._ask(attachment, "detach", {})))

    async def _left(self, asked: _Asked) -> None:
        with suppress(BusError):
            await self._answer(asked, REQUEST_TIMEOUT_S)
        self._link.forget(asked.attachment)

    # --- requests ---------------------------------------------------------------------------------

    async def operate(self, method: str, args: dict[str, Any]) -> Any:
        """The daemon's answer to one operation. Raises what is left after retrying."""
        retry = Retry(self._link)
        while True:
            try:
                timeout_s = self.timeout_s(inspected=method in MUTATIONS)
                return await self.attempt(method, {"args": args}, timeout_s)
            except BusError as error:
                if method == "unsubscribe" and error.code == "not_found" and retry.uncertain:
                    return {"channel": args["channel"]}  # the attempt before this one did it
                try:
                    await retry.after(error)
                except BusError as last:
                    if method not in MUTATIONS:
                        raise
                    repeat = f"with operation_id {args['operation_id']!r}"
                    raise retry.outcome(last, method, repeat) from None

    async def attempt(self, method: str, params: dict[str, Any], timeout_s: float) -> Any:
        """Ask the daemon once, attached."""
        return await self._request(await self.attach(), method, params, timeout_s)

    def timeout_s(self, *, inspected: bool) -> float:
        """Of one attempt. What is inspected is answered only after that."""
        config = self._link.config_in_force()
        if inspected and config.inspection_command:
            return REQUEST_TIMEOUT_S + config.inspection_timeout_seconds + _INSPECTION_SLACK_S
        return REQUEST_TIMEOUT_S

    async def attach(self) -> Attachment:
        """Be attached; calls at the same time share one attempt."""
        while self.attachment is None:
            if self._attaching is None:
                self._attaching = asyncio.create_task(self._attach())
                self._attaching.add_done_callback(self._attach_ended)
            await asyncio.shield(self._attaching)
        return self.attachment

    def used(self, arrival: int, channels: tuple[str, ...] | None) -> None:
        """Tell that a call of the conversation was seen: it confirms what was handed off before."""
        confirms = self.prefetch.confirms(arrival)
        if confirms or channels is not None:
            named = None if channels is None else list(channels)
            self.notify("used", {"confirms": confirms, "channels": named})

    # --- waiting for messages ---------------------------------------------------------------------

    def pull(
        self, channels: tuple[str, ...], *, count: int, max_bytes: int, wait_s: float, own: bool
    ) -> Pull:
        """Ask for what these channels have. What comes is queued even if nobody waits any more.

        Call it attached, so that the positions are those of this attachment. Raises
        UnavailableError when it is not.
        """
        attachment, prefetch, epoch = self.attachment, self.prefetch, self.prefetch.epoch
        if attachment is None:
            raise UnavailableError("the connection to the daemon was lost")
        self._pull_number += 1
        positions = self.prefetch.pull_positions(channels, own=own)
        params = {
            "number": self._pull_number,
            "after": [list(position) for position in positions.items()],
            "count": count,
            "max_bytes": max_bytes,
            "wait_ms": round(wait_s * 1000),
            "include_own": own,
        }

        def arrived(answer: dict[str, Any]) -> None:
            """Before what is pushed behind it, or that would leave a hole."""
            if answer["epoch"] == epoch:
                for delivery in answer["deliveries"]:
                    prefetch.accept(parse_arrived(delivery), epoch=epoch, pushed=False, own=own)

        asked = self._ask(attachment, "pull", params, arrived)
        task = self._spawn(self._pulled(asked, epoch, wait_s + _ANSWER_SLACK_S))
        return Pull(self, self._pull_number, task)

    def cancel_pull(self, number: int) -> None:
        self.notify("cancel_pull", {"number": number})

    def next_change(self) -> asyncio.Future[None]:
        """Done when something arrives or the attachment goes. Cancel it when it is not needed."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return watcher

    async def _pulled(self, asked: _Asked, epoch: int, timeout_s: float) -> None:
        try:
            answer = await self._answer(asked, timeout_s)
        except NoAnswerError:
            # The answer may still be given, to nobody, and pushes would then go on behind it.
            self._give_up(asked.attachment)
            raise
        if answer["epoch"] != epoch:
            # The daemon read on from positions of before its recovery and would not send again what
            # was thrown away here. Only a new attachment begins at the stored positions.
            self._give_up(asked.attachment)
            raise UnavailableError("the bus recovered meanwhile; nothing was lost")
        self._flush()
        self._changed()

    async def compare_memories(self, held: Callable[[], list[Held]]) -> None:
        """Have the memories that are about to be shown be as they are now.

        Nothing may be awaited between this and taking them.
        """
        prefetch, compared = self.prefetch, set[Held]()
        while asked := [memory for memory in held() if memory not in compared]:
            attachment = await self.attach()
            answer = await self._request(attachment, "memories", {"held": asked}, REQUEST_TIMEOUT_S)
            if self.prefetch is not prefetch:
                return  # the bus was reset; nothing of before is shown
            compared.update(asked[: answer["compared"]])
            for subscription, position, message in answer["changed"]:
                prefetch.supersede(subscription, position, message)
                if message is not None:
                    now = (subscription, position, message["message_id"], message["revision"])
                    compared.add(now)
        self._flush()

    # --- handoff ----------------------------------------------------------------------------------

    def handing_off(self, prefetch: Prefetch, batch: Batch) -> None:
        """A result of this conversation leaves in the next moment: should this process be killed
        before its report, whoever comes next knows what to mark.

        It is noted on disk, and the daemon is told, which nobody waits for: the one holds when the
        daemon cannot be told or is killed as well, the other when the machine fails later.
        """
        if prefetch is self.prefetch:
            self._expose(prefetch.exposes(batch))

    def settle(
        self,
        prefetch: Prefetch,
        batch: Batch,
        *,
        handed_off: bool,
        bytes_left: bool,
        begun: bool,
    ) -> None:
        """A result of this conversation left the adapter, or did not."""
        prefetch.settle(batch, handed_off=handed_off, bytes_left=bytes_left)
        if prefetch is self.prefetch:
            self._flush()
            if begun and not bytes_left:
                self._expose(prefetch.unexposed(batch))
            self._changed()

    def notices_told(self, told: tuple[dict[str, Any], ...]) -> None:
        """A result with these notices was handed off."""
        self.notices = [notice for notice in self.notices if notice not in told]
        self.memory_notices.told(told)

    def _flush(self) -> None:
        """Send the credit and the reports that are due."""
        if self.attachment is None or self._link.client_of(self.attachment) is None:
            return
        messages, size_bytes = self.prefetch.credit_due()
        if messages:
            self.notify("credit", {"messages": messages, "bytes": size_bytes})
        report = self.prefetch.report_due()
        if report is not None:
            self._send_report(self.attachment, self.prefetch, report)

    def _expose(self, exposed: dict[int, int]) -> None:
        if exposed:
            if self._exposures is not None:
                self._exposures.note(exposed)
            self.notify("handing_off", {"exposed": [list(place) for place in exposed.items()]})

    async def reported(self, timeout_s: float) -> None:
        """Wait until the daemon has answered what was reported, but not for long."""
        if self._reports:
            await asyncio.wait(self._reports, timeout=timeout_s)
        is_holder = self.attachment is not None  # else another adapter may note there now
        if self._exposures is not None and is_holder and self.prefetch.all_stored:
            self._exposures.forget()

    def _send_report(self, attachment: Attachment, prefetch: Prefetch, report: Report) -> None:
        """At once, in the step in which the result's last byte left: should this process be killed
        right now, the daemon knows, and marks what it delivers again."""
        params = {
            "epoch": report.epoch,
            "report": report.number,
            "positions": [list(position) for position in report.positions.items()],
            "expired": list(report.expired),
        }
        reach("before_report")
        try:
            asked = self._ask(attachment, "handoff", params)
        except BusError as error:
            _log.info("handoff report %d was not sent: %s", report.number, error.message)
            prefetch.failed(report)
            return
        task = self._spawn(self._reported(asked, prefetch, report))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _reported(self, asked: _Asked, prefetch: Prefetch, report: Report) -> None:
        try:
            answer = await self._answer(asked, REQUEST_TIMEOUT_S)
        except BusError as error:
            _log.info("handoff report %d was not taken: %s", report.number, error.message)
            if self.attachment == asked.attachment:
                prefetch.failed(report)
            return
        if self.attachment == asked.attachment and not answer.get("stale"):
            prefetch.committed(report)

    # --- the link's Listener ----------------------------------------------------------------------

    def attached(self, attachment: Attachment, answer: dict[str, Any]) -> None:
        if self._bus_id is not None and self._bus_id != answer["bus_id"]:
            self.prefetch = Prefetch()
            self._exposures = None
            self.memory_notices = MemoryNotices()
            self.peer.forget()
            self.notices.append(
                {
                    "kind": "bus_reset",
                    "message": "the bus was reset: channels, messages, memories and subscriptions "
                    "of before are gone",
                }
            )
        self._bus_id = answer["bus_id"]
        self.attachment = attachment
        self.display_name = answer["display_name"]
        if self._exposures is None:
            folder, session_id = self._link.exposures_folder, answer["session_id"]
            self._exposures = Exposures(folder, answer["bus_id"], session_id)
        shown_before = self._exposures.read()  # another adapter may have had it meanwhile
        self.prefetch.attached(
            answer["session_id"], answer["epoch"], answer["subscriptions"], shown_before
        )
        self._expose(self.prefetch.exposed_before(answer["subscriptions"]))
        for change in answer["memory_changes"]:
            self.memory_notices.add(change)
        self._flush()
        self.peer.attached()
        self._changed()

    def notified(self, method: str, params: dict[str, Any]) -> None:
        if method == "deliver":
            arrived = parse_arrived(params["delivery"])
            self.prefetch.accept(arrived, epoch=params["epoch"], pushed=True)
            self._flush()
            if self.prefetch.pending:
                self.on_arrival()
        elif method == "invalidate":
            self.prefetch.supersede(params["subscription"], params["position"], params["envelope"])
            self._flush()
        elif method == "notice":
            self._noticed(params["notice"])
        elif method == "expired":
            self.prefetch.expire(params["subscription"], params["channel"], params["expired_at"])
        elif method == "peer_waiting":
            if self.peer.has_more(params["count"]):
                self.on_arrival()
        else:
            self.attachment = None
        self._changed()

    def _noticed(self, notice: dict[str, Any]) -> None:
        if "memory_id" in notice:
            self.memory_notices.add(notice)
        else:  # of the bus itself: the newest of its kind, told in the next result of any tool
            same = ("kind", "budget")
            self.notices = [
                earlier
                for earlier in self.notices
                if any(earlier.get(key) != notice.get(key) for key in same)
            ]
            self.notices.append(notice)

    def readiness_changed(self, state: str, epoch: int) -> None:
        if epoch != self.prefetch.epoch:
            self.prefetch.new_epoch(epoch)
        if state == "ready":
            self._flush()

    def connection_lost(self) -> None:
        self._attached_when_lost = self.attachment is not None
        self.attachment = None
        self._changed()

    # --- inside -----------------------------------------------------------------------------------

    async def _attach(self) -> None:
        window_messages, window_bytes = self._window(self)
        identity = self.binding.identity
        params = {
            "agent": self._profile.agent,
            "application": identity.application,
            "conversation": identity.conversation,
            "child": identity.child,
            "identity_source": self.binding.source,
            "proven": self.binding.proven,
            "window_messages": window_messages,
            "window_bytes": window_bytes,
            "parent_conversation": self.binding.parent_conversation,
            "role": self.binding.role,
            "repository": self._profile.repository,
            "harness_pid": self._profile.harness_pid,
            "capabilities": list(self._profile.capabilities),
            "presence": self._profile.presence,
        }
        known = {key: value for key, value in params.items() if value is not None}
        await self._link.attach(known, self)

    async def _attach_quietly(self) -> None:
        """As persistent as a call: a daemon that has just started may not take it yet, and a lease
        is renewed only by who is attached."""
        retry = Retry(self._link)
        while self.attachment is None and not self.has_left:
            try:
                await self.attach()
            except BusError as error:
                try:
                    await retry.after(error)
                except BusError:
                    _log.info("not attached again: %s", error.message)
                    return

    def _attach_ended(self, task: asyncio.Task[None]) -> None:
        self._attaching = None
        if not task.cancelled():
            task.exception()  # whoever waited has raised it; perhaps nobody waits any more

    async def _request(
        self, attachment: Attachment, method: str, params: dict[str, Any], timeout_s: float
    ) -> Any:
        return await self._answer(self._ask(attachment, method, params), timeout_s)

    def _ask(
        self,
        attachment: Attachment,
        method: str,
        params: dict[str, Any],
        on_result: Callable[[dict[str, Any]], None] | None = None,
    ) -> _Asked:
        client = self._link.client_of(attachment)
        if client is None:
            raise UnavailableError("the connection to the daemon was lost")
        named = {"attachment": _wire(attachment), **params}
        return _Asked(attachment, client, client.ask(method, named, on_result))

    async def _answer(self, asked: _Asked, timeout_s: float) -> Any:
        try:
            return await asked.client.answer(asked.request, timeout_s)
        except BusError as error:
            if error.code == "stale_attachment":
                self._give_up(asked.attachment)
            raise

    def _give_up(self, attachment: Attachment) -> None:
        """Attach again at the next call."""
        self._link.forget(attachment)
        if self.attachment == attachment:
            self.attachment = None

    def _changed(self) -> None:
        for watcher in tuple(self._watchers):
            if not watcher.done():
                watcher.set_result(None)

    def notify(self, method: str, params: dict[str, Any]) -> bool:
        """Tell the daemon something; False when there is no attachment to tell it with."""
        client = None if self.attachment is None else self._link.client_of(self.attachment)
        if self.attachment is None or client is None:
            return False
        try:
            client.notify(method, {"attachment": _wire(self.attachment), **params})
        except BusError as error:
            _log.info("%s was not sent: %s", method, error.message)
            return False
        return True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class Pull:
    """A request for messages under way. Leaving it early tells the daemon not to wait."""

    def __init__(self, conversation: Conversation, number: int, task: asyncio.Task[None]) -> None:
        self._conversation = conversation
        self._number = number
        self._task = task

    async def wait(self, stop_early: Callable[[], bool]) -> None:
        """Until it is answered, or something else arrived that makes `stop_early` true.

        Raises the BusError of the pull.
        """
        try:
            while not self._task.done() and not stop_early():
                change = self._conversation.next_change()
                try:
                    await asyncio.wait([self._task, change], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    change.cancel()
            if self._task.done():
                self._task.result()
        finally:
            if not self._task.done():
                self._conversation.cancel_pull(self._number)
                self._task.add_done_callback(_retrieve)


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _wire(attachment: Attachment) -> list[Any]:
    return [attachment.session_id, attachment.generation]
