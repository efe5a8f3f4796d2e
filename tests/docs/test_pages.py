"""What the documents say is so: links, names, generated pages, examples."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from actors import front_door
from agentbus.adapter.tools import TOOLS
from agentbus.cli import admin, bus
from agentbus.cli.doctoring.faults import FAULTS
from agentbus.cli.entry import parse
from agentbus.config import load_config
from agentbus.encoding import decode_strict
from agentbus.jobs import decode_event
from agentbus.jobs.running import EXIT_CODES
from agentbus.jobs.settings import VARIABLES
from agentbus.protocol import peer_frames, session, talk
from agentbus.protocol.jobs import JOB_REQUESTS
from agentbus.protocol.operations import OPERATIONS
from agentbus.protocol.people import PERSONS_REQUESTS
from tests.architecture.tree import ROOT
from tests.docs.documents import BLOCK, DOCUMENTS, blocks
from tests.docs.pages import DOCS, PAGES

LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(#[^)]*)?\)")
SOURCE = re.compile(r"`((?:agentbus|actors|examples|tests)/[\w./]*)`")
ROW = re.compile(r"^\| (.+?) \|", re.MULTILINE)


def _named_in_first_column(text: str) -> set[str]:
    return {name for cell in ROW.findall(text) for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize("name", PAGES)
def test_page_is_what_the_code_says(name: str) -> None:
    written = (DOCS / name).read_text(encoding="utf-8")
    assert written == PAGES[name](), "run: python -m tests.docs.pages"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    broken = [
        target
        for target, _ in LINK.findall(text)
        if "://" not in target and not (document.parent / target).exists()
    ]
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_is_named_exists(document: Path) -> None:
    named = SOURCE.findall(document.read_text(encoding="utf-8"))
    assert not [path for path in named if not (ROOT / path).exists()]


def test_every_page_can_be_found_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = {target for target, _ in LINK.findall(text)}
    assert {f"docs/{page.name}" for page in DOCS.glob("*.md")} <= linked


def test_readme_lists_every_tool() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("## What an agent can do") : text.index("## What a person can do")]
    assert _named_in_first_column(table) == {tool.name for tool in TOOLS}


def test_readme_has_exactly_the_two_commands_to_set_up() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = BLOCK.search(text[text.index("## Set up") :])
    assert block is not None
    commands = [line.split("#")[0].split() for line in block[2].splitlines()]
    assert commands == [["make", "demo"], ["make", "test"]]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{target}:" in makefile for _, target in commands)


def test_operations_page_lists_every_fault_that_the_doctor_knows_with_its_advice() -> None:
    text = (DOCS / "operations.md").read_text(encoding="utf-8")
    section = text[text.index("\n## Doctor") :].split("\n## ")[1]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{fault.name}` | {fault.level} | {fault.meaning} | {fault.advice} |" for fault in FAULTS
    ]


def test_protocol_page_names_every_request_and_notification_of_a_client() -> None:
    parsers = {
        name.removeprefix("parse_").removesuffix("_request")
        for name in (*vars(session), *vars(peer_frames))
        if name.startswith("parse_")
    }
    handled = parsers | {"heartbeat", "stop", "reset", *front_door._REPORTS}
    handled |= PERSONS_REQUESTS.keys() | JOB_REQUESTS.keys() | {"job_event"}
    handled |= talk.PARSERS.keys()
    operations = set(OPERATIONS) - {"receive"}
    text = (DOCS / "protocol.md").read_text(encoding="utf-8")
    clients = text[text.index("## Requests of") : text.index("## Notifications of the daemon")]
    assert _named_in_first_column(clients) == handled | operations


def test_jobs_page_lists_every_variable_of_a_tool() -> None:
    text = (DOCS / "jobs.md").read_text(encoding="utf-8")
    table = text[text.index("| Variable |") : text.index("A wrong value is refused")]
    assert table.splitlines()[2:-1] == [
        f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()
    ]


def test_jobs_page_lists_every_exit_code() -> None:
    text = (DOCS / "jobs.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d) \| .*?`(\w+)`", text, re.MULTILINE))
    assert rows == {"0": "succeeded", "1": "failed"} | {
        str(number): code for code, number in EXIT_CODES.items() if number > 1
    }


def test_example_of_a_tool_on_the_jobs_page_works_as_it_is(tmp_path: Path) -> None:
    (example,) = blocks(DOCS / "jobs.md", "python")
    path = tmp_path / "events.ndjson"
    told = {"COUNTER_TRANSPORT": "file", "COUNTER_EVENTS_PATH": str(path)}
    subprocess.run(
        [sys.executable, "-c", example], cwd=ROOT, env={**os.environ, **told}, check=True
    )
    types = [decode_event(line).TYPE for line in path.read_bytes().splitlines()]
    assert types == ["accepted", "progress", "progress", "succeeded"]


def test_glossary_is_in_order() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    words = ROW.findall(text)[2:]
    assert words == sorted(words, key=str.casefold)


def test_example_configuration_is_accepted(tmp_path: Path) -> None:
    (example,) = blocks(DOCS / "settings.md", "json")
    path = tmp_path / "config.json"
    path.write_text(example)
    assert set(load_config(path).source.values()) == {"file", "default"}


def _server_entries() -> list[tuple[str, dict[str, Any]]]:
    entries: list[tuple[str, dict[str, Any]]] = []
    for document in (ROOT / "README.md", *(DOCS / "harnesses").glob("*.md")):
        for block in blocks(document, "json"):
            entries += decode_strict(block)["mcpServers"].items()
        for block in blocks(document, "toml"):
            entries += tomllib.loads(block)["mcp_servers"].items()
        for block in blocks(document, "sh"):
            for line in block.splitlines():
                if line.startswith("claude mcp add "):
                    name, command, *args = line.split()[3:4] + line.split(" -- ")[1].split()
                    entries.append((name, {"command": command, "args": args}))
    return entries


def test_every_server_entry_shown_is_a_valid_command_line() -> None:
    entries = _server_entries()
    assert len(entries) == 3
    for name, entry in entries:
        assert (name, entry["command"]) == ("agentbus", "agentbus")
        assert parse(bus.USAGE, entry["args"])["mcp"] is True


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_shown_is_one_that_exists(document: Path) -> None:
    usages = {"agentbus": bus.USAGE, "agentbus-admin": admin.USAGE}
    for block in blocks(document, "sh"):
        for line in block.splitlines():
            program, *arguments = shlex.split(line, comments=True) or [""]
            if program in usages:
                parse(usages[program], arguments)
