"""The two budgets: when one is full, how far cleanup goes then, and what is said about it.

Owns the arithmetic and the words. Never measures or removes anything itself. Pure; runs on the
threads of the ledger and of the shared dispatcher.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

from agentbus.limits import KIB

Budget: TypeAlias = Literal["sqlite", "redis"]

ROW_BYTES = 2 * KIB
"""Of a mutation beside its envelope: ids, thread and receipt at their largest are below that."""


def goal_bytes(limit_bytes: int, free_percent: int, needed_bytes: int) -> int:
    """What may be used when capacity cleanup ends: the free share, and room for what waits."""
    return min(limit_bytes * (100 - free_percent) // 100, limit_bytes - needed_bytes)


def largest_mutation_bytes(max_message_kib: int) -> int:
    """With so much room every mutation fits: a budget that has it is not exhausted any more."""
    return max_message_kib * KIB + ROW_BYTES


def rebuild_surplus_bytes(
    retained_bytes: int, dataset_bytes: int, filled: float, goal_bytes: int
) -> int:
    """What to remove of all that a rebuild puts into Redis, when it stopped with `filled` done.

    As if each byte took as much there. The next attempt tells how far that was true, so it is never
    next to nothing.
    """
    whole_bytes = dataset_bytes / max(filled, 0.001)
    return max(1, retained_bytes // 20, round(retained_bytes * (1 - goal_bytes / whole_bytes)))


def refusal(budget: Budget, config_path: Path) -> str:
    """Of a mutation for which there is no room."""
    return (
        f"{_setting(budget)} is used up and nothing is left that may be removed; nothing was "
        f"committed. {_ways_out(budget, config_path)}"
    )


def warning(budget: Budget, limit_mib: int, config_path: Path) -> dict[str, Any]:
    """The notice for every live session while a budget is exhausted."""
    return {
        "kind": "capacity",
        "budget": _setting(budget),
        "exhausted": True,
        "message": f"the bus is full: {_setting(budget)} ({limit_mib} MiB) is used up and nothing "
        "is left that may be removed, so new messages and changes of memories are refused. "
        f"{_ways_out(budget, config_path)}",
    }


def all_clear(budget: Budget) -> dict[str, Any]:
    """The notice for every live session when there is room again."""
    return {
        "kind": "capacity",
        "budget": _setting(budget),
        "exhausted": False,
        "message": f"there is room again in {_setting(budget)}; the bus takes messages as before",
    }


def _setting(budget: Budget) -> str:
    return f"{budget}_budget_mib"


def _ways_out(budget: Budget, config_path: Path) -> str:
    return (
        f"Ask the user for one of two things: raise {_setting(budget)} in {config_path} and run "
        "`agentbus stop` (the next call starts the bus anew); or `agentbus reset`, which deletes "
        "all messages, memories, channels, agents, sessions and cursors"
    )
