"""Named places where a crash test ends the process, stops it, or makes an operation fail.

Owns one environment variable, `AGENTBUS_TEST_FAILPOINT`, read once at import, and the list of all
places, each with the part of the bus that gets there. Entries are separated by commas; each is
`name[@N][:action]`: at the Nth time that execution gets there (the first by default), once,

- `kill`, the default: SIGKILL of the own process;
- `pause`: SIGSTOP of the own process, until somebody sends SIGCONT;
- `raise`: OSError, at that time and every later one, as of a disk that broke.

A place belongs to one process, so daemon and adapter are armed apart although the daemon inherits
the variable of an adapter that starts it. Without the variable a place costs one comparison. A name
that is none ends the process at import: a test that arms nothing would prove nothing. Any thread.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from itertools import count
from typing import Final

VARIABLE: Final = "AGENTBUS_TEST_FAILPOINT"

POINTS: Final = {
    "before_commit": "ledger: a batch with a mutation or a claim is written, COMMIT has not begun",
    "commit": "ledger: COMMIT of such a batch, whose outcome is unknown when it raises",
    "after_commit": "ledger: such a batch is committed, nobody has been answered or told",
    "during_memory_edit": "ledger: the live revision has ended, the next one is not written",
    "during_eviction": "ledger: messages are removed, their range and the counter are not written",
    "before_removal": "projector: SQLite has removed messages of a channel, Redis still has them",
    "during_reset": "reset: the tables are empty, the new bus has no first rows",
    "after_reset": "reset: the new bus is committed, nobody has been answered",
    "during_import": "import: an export's rows are written, COMMIT has not begun",
    "before_migration": "migration: an older schema is copied, the database is the old one",
    "during_migration": "migration: a step is written, COMMIT has not begun",
    "after_migration": "migration: a step is committed",
    "after_projection": "projector: Redis holds a batch, no channel has heard of it",
    "during_rebuild": "projector: a part of a cleared Redis is filled, there is no marker",
    "before_mark": "projector: a cleared Redis is filled, it does not count as complete yet",
    "during_replay": "projector: a part of what Redis missed is appended",
    "during_report_batch": "attachment: a handoff report waits for the commit of its batch",
    "before_cursor_commit": "attachment: a batch of handoff reports is about to go to the ledger",
    "after_cursor_commit": "ledger: positions are committed, their reports not answered",
    "during_inspection": "inspector: the inspection command runs",
    "before_handoff_write": "adapter: a result with messages is about to be written",
    "after_handoff_write": "adapter: its last byte has left, the messages do not count as handed",
    "before_report": "adapter: messages count as handed off, the daemon does not know",
}

_ENTRY: Final = re.compile(r"(\w+)(?:@([1-9][0-9]*))?(?::(kill|pause|raise))?")


@dataclass(slots=True)
class _Armed:
    """`arrivals` is a counter that threads can share: one step of it is one step of C."""

    at: int
    action: str
    arrivals: count[int]


_armed: dict[str, _Armed] = {}


def arm(entries: str) -> None:
    """Arm these entries and no others; none for an empty text. Raises ValueError."""
    armed = {}
    for entry in filter(None, (part.strip() for part in entries.split(","))):
        parsed = _ENTRY.fullmatch(entry)
        if parsed is None:
            raise ValueError(f"{VARIABLE}: {entry!r} is not name[@N][:kill|:pause|:raise]")
        name, number, action = parsed.groups()
        if name not in POINTS:
            raise ValueError(f"{VARIABLE}: no failpoint {name!r}; known: {', '.join(POINTS)}")
        armed[name] = _Armed(int(number or 1), action or "kill", count(1))
    _armed.clear()
    _armed.update(armed)


def reach(name: str) -> None:
    """Say that execution got to the place `name`."""
    if not _armed or name not in _armed:
        return
    point = _armed[name]
    arrival = next(point.arrivals)
    if arrival < point.at:
        return
    if point.action == "raise":
        raise OSError(f"failpoint {name}")
    if arrival == point.at:
        os.kill(os.getpid(), signal.SIGKILL if point.action == "kill" else signal.SIGSTOP)


arm(os.environ.get(VARIABLE, ""))
