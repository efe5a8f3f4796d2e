"""Which adapters a harness process has started, and what command hooks said and when.

Owns these maps, in plain memory, for the registrar, on its thread. Never decides who somebody is:
it passes on to the adapters of the same process, and they bind their calls by it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from actors.messages import HookHeard, Link
from agentbus.encoding import encode_line
from agentbus.protocol.session import HookEvent

KEPT_S: Final = 60.0
"""A harness runs its first hook and its server at the same time, either first. Not kept for longer:
the system gives process ids again."""

KEPT: Final = 256


class HookEvidence:
    """Told by the registrar of adapters that come and go, and of hooks."""

    def __init__(self) -> None:
        self._adapters: dict[Link, int] = {}
        self._newest: OrderedDict[int, tuple[float, HookEvent]] = OrderedDict()
        self._heard: OrderedDict[tuple[str, str], HookHeard] = OrderedDict()

    def greeted(self, link: Link, harness_pid: int, now_s: float) -> None:
        """An adapter came: it is told what a hook of its harness has said before."""
        if link.closed:
            return
        self._adapters[link] = harness_pid
        at_s, event = self._newest.get(harness_pid, (0.0, None))
        if event is not None and now_s - at_s <= KEPT_S:
            link.send(_frame(event))

    def gone(self, link: Link) -> None:
        self._adapters.pop(link, None)

    def may_concern(self, event: HookEvent, link: Link) -> bool:
        """Whether the hook may be of the harness that started this adapter.

        The same conversation can be open in two of them. Also true where a process is not known.
        """
        pid = event.harness_pid
        return pid is None or self._adapters.get(link, pid) == pid

    def heard(self) -> tuple[HookHeard, ...]:
        """Per application and event, when one last spoke; the longest silent first."""
        return tuple(self._heard.values())

    def seen(self, event: HookEvent, now_s: float, at_us: int) -> None:
        """A hook spoke: the adapters of its process are told.

        One that names no process has told its adapter itself.
        """
        key = (event.application, event.event)
        self._heard[key] = HookHeard(event.application, event.event, at_us)
        self._heard.move_to_end(key)
        if len(self._heard) > KEPT:
            self._heard.popitem(last=False)
        pid = event.harness_pid
        if pid is None:
            return
        self._newest[pid] = (now_s, event)
        self._newest.move_to_end(pid)
        if len(self._newest) > KEPT:
            self._newest.popitem(last=False)
        for link, adapter_of in self._adapters.items():
            if adapter_of == pid:
                link.send(_frame(event))


def _frame(event: HookEvent) -> bytes:
    """With the names that hooks use, as in a call of the hidden tool."""
    params: Mapping[str, Any] = {
        "event": event.event,
        "session_id": event.conversation,
        "agent_id": event.child,
        "agent_type": event.role,
    }
    return encode_line({"jsonrpc": "2.0", "method": "evidence", "params": params})
