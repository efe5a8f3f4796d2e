"""opencode: neither a call nor its environment says which conversation it is of."""

from __future__ import annotations

from dataclasses import replace

from agentbus.harnesses import generic

HARNESS = replace(generic.harness("opencode"), runs_commands=True)
