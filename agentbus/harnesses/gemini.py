"""Gemini CLI: no call says whose it is; hooks of the same process name its conversation."""

from __future__ import annotations

from dataclasses import replace

from agentbus.harnesses import generic

HARNESS = replace(
    generic.harness("gemini-cli-mcp-client"), application="gemini", runs_commands=True
)
