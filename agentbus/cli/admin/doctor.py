"""`agentbus-admin doctor`: is everything right, and does a message come through and back?

Owns the order of the checks, what is left out when something before is broken, and how it is shown.
Works without a daemon, with one that hangs, with a configuration that cannot be used. Main thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from agentbus.cli.doctoring.canary import Flight, send_canary
from agentbus.cli.doctoring.faults import CANARY_NOT_SENT, PROGRAM_MISSING, Finding, fine
from agentbus.cli.doctoring.harnesses import Surroundings, examine_harnesses
from agentbus.cli.doctoring.processes import examine_processes
from agentbus.cli.doctoring.service import (
    ask_daemon,
    examine_configuration,
    examine_daemon,
    examine_in_use,
    examine_redis,
    examine_runtime,
)
from agentbus.cli.entry import EXIT_FAILURE, EXIT_OK, Arguments
from agentbus.cli.output import print_json
from agentbus.cli.program import own_program
from agentbus.cli.running import runtime_paths
from agentbus.cli.text import for_terminal
from agentbus.errors import NotFoundError
from agentbus.harnesses.installing.entries import moved_folders

_LINE_CHARACTERS: Final = 2000


def doctor(arguments: Arguments) -> int:
    """Show every finding. Exit 1 when one is a failure."""
    given = arguments["--config"]
    visit = _Visit(None if given is None else Path(os.path.abspath(given)))
    findings: list[Finding] = []
    for finding in visit.findings():
        findings.append(finding)
        if not arguments["--json"]:
            _print(finding)
    failed = any(finding.level == "failure" for finding in findings)
    if arguments["--json"]:
        print_json(
            {
                "ok": not failed,
                "findings": [asdict(finding) for finding in findings],
                "hops": [asdict(hop) for hop in visit.flight.hops],
            }
        )
    else:
        print(_summary(findings))
    return EXIT_FAILURE if failed else EXIT_OK


class _Visit:
    """One run of all checks."""

    def __init__(self, config_path: Path | None) -> None:
        self._config_path = config_path
        self.flight = Flight()

    def findings(self) -> Iterator[Finding]:
        """Each as soon as it is there: some take seconds."""
        paths, uid = runtime_paths(), os.getuid()
        program = None
        try:
            program = own_program()
            yield fine("program", str(program))
        except NotFoundError as error:
            yield PROGRAM_MISSING.found("program", error.message)
        config, found = examine_configuration(self._config_path)
        yield from found
        found = examine_runtime(paths, uid)
        yield from found
        reachable = all(finding.level == "ok" for finding in found)
        daemon = ask_daemon()
        if reachable:
            yield from examine_daemon(daemon, paths)
        if config is not None and program is not None and reachable and daemon.silence is None:
            wait_s = config.recv_max_wait_seconds
            self.flight = send_canary(program, self._config_path, paths, wait_s)
            yield from self.flight.findings(config.data_directory / "logs")
            daemon = ask_daemon()  # the canary may have started it, or waited until it was ready
        else:
            yield CANARY_NOT_SENT.found("canary", "not sent")
        if daemon.status is not None:
            if config is not None:
                yield examine_in_use(daemon.status, config)
            yield from examine_redis(daemon.status)
        if program is not None:
            yield from examine_harnesses(
                Surroundings(
                    Path.home(), Path.cwd(), program, daemon.status, moved_folders(os.environ)
                )
            )
        yield from examine_processes(paths, uid)


def _print(finding: Finding) -> None:
    seen = for_terminal(finding.seen, _LINE_CHARACTERS)
    print(f"{finding.level:8} {finding.check}: {seen}")
    if finding.advice is not None:
        print(f"{'':8}   -> {for_terminal(finding.advice, _LINE_CHARACTERS)}", flush=True)


def _summary(findings: list[Finding]) -> str:
    def count(level: str, noun: str) -> Any:
        number = sum(finding.level == level for finding in findings)
        return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

    return f"{len(findings)} checks: {count('failure', 'failure')}, {count('warning', 'warning')}."
