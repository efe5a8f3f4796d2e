"""Installing into files of a user's, as they really look, and taking everything out again."""

from __future__ import annotations

import stat
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from agentbus.encoding import decode_strict, encode
from agentbus.errors import ConflictError, ValidationError
from agentbus.harnesses.installing.entries import HARNESSES, Target, entries_of, is_ours
from agentbus.harnesses.installing.installation import (
    BACKUP_SUFFIX,
    carry_out,
    plan_install,
    plan_uninstall,
)

FILES = {
    "claude-code": (".claude.json", ".claude/settings.json"),
    "codex": (".codex/config.toml", ".codex/hooks.json"),
    "opencode": (".config/opencode/opencode.json",),
    "gemini": (".gemini/settings.json",),
}

JSON_DOCUMENTS = {
    "empty file": "",
    "empty object": "{}",
    "empty object on lines": "{\n}\n",
    "one line": '{"theme": "dark"}',
    "two spaces": '{\n  "theme": "dark",\n  "n": [1, 2.50, 1e3]\n}\n',
    "four spaces, no newline at the end": '{\n    "theme": "dark"\n}',
    "tabs and windows lines": '{\r\n\t"theme": "dark",\r\n\t"x": {}\r\n}\r\n',
    "comments": '// mine\n{\n  // about it\n  "theme": "dark", // trailing\n  /* end */\n}\n',
    "trailing commas": '{\n  "theme": "dark",\n  "list": [1, 2,],\n}\n',
    "escapes": '{\n  "\\u0074heme": "d\\u00e4rk",\n  "ü": "\\/"\n}\n',
    "byte order mark": '\ufeff{\n  "theme": "dark"\n}\n',
    "other servers and hooks": (
        '{\n  "mcpServers": {\n    "other": {"command": "other", "args": ["mcp"]}\n  },\n'
        '  "mcp": {"other": {"type": "local", "command": ["other"]}},\n'
        '  "hooks": {\n    "Stop": [\n'
        '      {"hooks": [{"type": "command", "command": "say done"}]}\n'
        "    ],\n    // mine\n"
        '    "SessionStart": []\n  }\n}\n'
    ),
    "empty containers": '{"mcpServers": {}, "mcp": {}, "hooks": {"Stop": []}}\n',
}

TOML_DOCUMENTS = {
    "empty file": "",
    "keys": '# mine\nmodel = "gpt-5"   # the model\n\n[tui]\nnotifications = true\n',
    "no newline at the end": 'model = "gpt-5"',
    "other servers": (
        'model = "x"\n\n[mcp_servers.other]\ncommand = "other"\nargs = ["a",  "b"]\n\n'
        "[mcp_servers.other.env]\nA = '1'\n\n# last words\n[projects.\"/a b\"]\n"
        'trust_level = "trusted"\n'
    ),
    "inline": "mcp_servers = { other = { command = 'other' } }\n",
    "empty parent": "[mcp_servers]\n",
    "dotted keys": 'mcp_servers.other.command = "other"\nmodel = "x"\n[a]\nb = nan\n',
    "dotted table": 'mcp_servers.other = {command = "other"}\nmodel = "x"\n',
    "windows lines": 'model = "x"\r\n[a]\r\nb = 1\r\n',
}


def documents_of(name: str) -> dict[str, str]:
    return TOML_DOCUMENTS if name.endswith(".toml") else JSON_DOCUMENTS


CASES = [
    (harness, file, kind)
    for harness, files in FILES.items()
    for file in files
    for kind in documents_of(file)
]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(home=tmp_path, project=None, command="/opt/bus/bin/agentbus", agent="Sam")


def install(harness: str, target: Target) -> list[bool]:
    changes = plan_install(entries_of(harness, target))
    carry_out(changes, installing=True)
    return [not change.is_none for change in changes]


def uninstall(harness: str, target: Target) -> None:
    carry_out(plan_uninstall(entries_of(harness, target)), installing=False)


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(("harness", "file", "kind"), CASES)
def test_install_twice_and_uninstall_leave_every_byte_as_it_was(
    target: Target, harness: str, file: str, kind: str
) -> None:
    written(target.home / file, documents_of(file)[kind])
    before = files_below(target.home)
    assert all(install(harness, target))
    installed = files_below(target.home)
    assert not any(install(harness, target))
    assert files_below(target.home) == installed
    uninstall(harness, target)
    assert files_below(target.home) == before


@pytest.mark.parametrize("harness", HARNESSES)
def test_where_nothing_was_nothing_is_left(target: Target, harness: str) -> None:
    install(harness, target)
    assert set(files_below(target.home)) == set(FILES[harness])
    uninstall(harness, target)
    assert files_below(target.home) == {}
    install(harness, target)
    uninstall(harness, replace(target, agent=None, command="/another/agentbus"))
    assert files_below(target.home) == {}


@pytest.mark.parametrize(("harness", "file", "kind"), CASES)
def test_what_others_write_meanwhile_stays(
    target: Target, harness: str, file: str, kind: str
) -> None:
    path = written(target.home / file, documents_of(file)[kind])
    install(harness, target)
    text = path.read_bytes().decode()
    if file.endswith(".toml"):
        added = "\n# about it\n\n[later]\nx = 1 # kept\n"
        path.write_bytes((text + added).encode())
    else:
        added = '"later": {"x": 1}'
        at = text.index("{") + 1
        path.write_bytes((text[:at] + added + "," + text[at:]).encode())
    uninstall(harness, target)
    left = path.read_bytes().decode()
    assert added in left
    assert "agentbus" not in left
    for line in documents_of(file)[kind].splitlines():
        assert line.strip(" \t{}[],") in left, (line, left)


def test_an_older_entry_is_brought_up_to_date_in_place(target: Target) -> None:
    path = written(target.home / ".claude.json", '{"a": 1}\n')
    install("claude-code", target)
    moved = replace(target, command="/elsewhere/agentbus", agent="Kim")
    assert all(install("claude-code", moved))
    entry = decode_strict(path.read_bytes())["mcpServers"]["agentbus"]
    assert entry["command"] == "/elsewhere/agentbus"
    assert entry["args"] == ["mcp", "--agent", "Kim"]
    uninstall("claude-code", moved)
    assert path.read_text() == '{"a": 1}\n'


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        (".claude.json", '{"a": ', "line 1: not JSON"),
        (".claude.json", "[1]", "must hold one JSON object"),
        (".claude.json", '{"a":1} {"b":2}', "must hold one JSON object"),
        (".claude.json", '{"mcpServers": 5}', "mcpServers must be an object"),
        (".claude/settings.json", '{"hooks": {"Stop": {}}}', "hooks.Stop must be a list"),
        (".claude/settings.json", '{"hooks": {"Stop": 5}}', "hooks.Stop must be a list"),
        (".claude/settings.json", '{"hooks": {"Stop": [' + "[" * 9999 + "]" * 9999 + "]}}", "deep"),
        (".claude/settings.json", r'{"\ud800": 1}', "line 1: text holds a lone surrogate"),
        (".claude.json", '{"mcpServers": {"agentbus": {"command": "other"}}}', "not an entry of"),
    ],
)
def test_what_cannot_be_edited_is_refused_and_nothing_is_changed(
    target: Target, file: str, text: str, why: str
) -> None:
    written(target.home / file, text)
    before = files_below(target.home)
    with pytest.raises(ValidationError, match=why):
        install("claude-code", target)
    assert files_below(target.home) == before


def test_toml_that_cannot_be_edited_is_refused(target: Target) -> None:
    written(target.home / ".codex/config.toml", "a = \n")
    with pytest.raises(ValidationError, match=r"config\.toml: not TOML"):
        install("codex", target)
    written(target.home / ".codex/config.toml", "mcp_servers = 5\n")
    with pytest.raises(ValidationError, match="mcp_servers must be a table"):
        install("codex", target)


@pytest.mark.parametrize("text", ["[mcp_servers]\nagentbus = 5\n", "[[mcp_servers.agentbus]]\n"])
def test_toml_of_another_kind_under_our_name_is_refused(target: Target, text: str) -> None:
    path = written(target.home / ".codex/config.toml", text)
    with pytest.raises(ValidationError, match=r"mcp_servers\.agentbus is there already"):
        install("codex", target)
    assert path.read_text() == text


def test_the_settings_beside_dotted_keys_stay_what_they_were(target: Target) -> None:
    text = TOML_DOCUMENTS["dotted table"]
    path = written(target.home / ".codex/config.toml", text)
    install("codex", target)
    found = tomllib.loads(path.read_text())
    assert (found["model"], set(found["mcp_servers"])) == ("x", {"other", "agentbus"})
    path.write_text("# mine\n" + path.read_text())
    uninstall("codex", target)
    assert tomllib.loads(path.read_text()) == tomllib.loads(text)


def test_a_damaged_copy_is_named_when_removing(target: Target) -> None:
    path = written(target.home / ".claude.json", '{"a": 1}\n')
    install("claude-code", target)
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    backup.write_text("{")
    with pytest.raises(ValidationError, match=rf"{backup.name}: not usable"):
        uninstall("claude-code", target)
    backup.unlink()
    uninstall("claude-code", target)
    assert files_below(target.home) == {".claude.json": b'{"a": 1}\n'}


def test_a_link_stays_a_link_and_a_mode_a_mode(target: Target) -> None:
    real = written(target.home / "dotfiles" / "claude.json", "{}\n")
    real.chmod(0o640)
    link = target.home / ".claude.json"
    link.symlink_to(real)
    install("claude-code", target)
    assert link.is_symlink()
    assert "agentbus" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    uninstall("claude-code", target)
    assert (link.is_symlink(), real.read_text()) == (True, "{}\n")


def test_a_link_to_nothing_leads_to_nothing_again(target: Target) -> None:
    real = target.home / "dotfiles" / "claude.json"
    link = target.home / ".claude.json"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(real)
    install("claude-code", target)
    assert "agentbus" in real.read_text()
    uninstall("claude-code", target)
    assert (link.is_symlink(), real.exists()) == (True, False)


@pytest.mark.parametrize("before", [None, '{"mine": 1}\n'])
def test_what_a_harness_writes_between_reading_and_writing_is_not_lost(
    target: Target, before: str | None
) -> None:
    path = target.home / ".claude.json"
    if before is not None:
        written(path, before)
    changes = plan_install(entries_of("claude-code", target))
    written(path, '{"theirs": 2}\n')
    with pytest.raises(ConflictError, match="run the command again"):
        carry_out(changes, installing=True)
    assert path.read_text() == '{"theirs": 2}\n'
    assert all(install("claude-code", target))
    assert decode_strict(path.read_bytes())["theirs"] == 2


def test_the_first_state_is_kept_beside_the_file(target: Target) -> None:
    path = written(target.home / ".gemini/settings.json", '{"mine": 1}\n')
    install("gemini", target)
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    assert backup.read_text() == '{"mine": 1}\n'
    path.write_text(path.read_text().replace('"mine": 1', '"mine": 2'))
    install("gemini", replace(target, agent="Kim"))
    assert backup.read_text() == '{"mine": 1}\n'
    uninstall("gemini", target)
    assert decode_strict(path.read_bytes()) == {"mine": 2}
    assert not backup.exists()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_hook_that_somebody_put_beside_ours_stays_and_ours_goes(
    target: Target, is_first: bool
) -> None:
    path = written(target.home / ".claude/settings.json", "{}\n")
    install("claude-code", target)
    settings = decode_strict(path.read_bytes())
    (group,) = settings["hooks"]["Stop"]
    theirs = {"type": "command", "command": "say done"}
    group["hooks"].insert(0 if is_first else 1, theirs)
    path.write_bytes(encode(settings))
    install("claude-code", target)
    groups = decode_strict(path.read_bytes())["hooks"]["Stop"]
    assert [is_ours(one) for one in groups] == [False, True]  # ours runs once
    assert not any(install("claude-code", target))
    settings["hooks"]["Stop"] = [group]
    path.write_bytes(encode(settings))
    uninstall("claude-code", target)
    assert decode_strict(path.read_bytes()) == {"hooks": {"Stop": [{"hooks": [theirs]}]}}


def test_a_project_has_its_own_files(target: Target) -> None:
    project = target.home / "work"
    project.mkdir()
    there = replace(target, project=project)
    for harness in HARNESSES:
        install(harness, there)
    assert set(files_below(target.home)) == {
        "work/.mcp.json",
        "work/.claude/settings.json",
        "work/.codex/config.toml",
        "work/.codex/hooks.json",
        "work/opencode.json",
        "work/.gemini/settings.json",
    }


def test_hook_commands_survive_a_path_with_spaces_and_quotes(target: Target) -> None:
    odd = replace(target, command="/my 'own' tools/agentbus")
    install("claude-code", odd)
    settings = decode_strict((target.home / ".claude/settings.json").read_bytes())
    command = settings["hooks"]["Stop"][0]["hooks"][0]["command"]
    script = target.home / "my 'own' tools" / "agentbus"
    written(script, '#!/bin/sh\necho "$@"\n').chmod(0o755)
    shell = ["sh", "-c", command.replace("/my ", f"{target.home}/my ")]
    shown = subprocess.run(shell, capture_output=True, text=True, check=True, timeout=30)
    assert shown.stdout == "wait --hook\n"
    assert is_ours(settings["hooks"]["Stop"][0])
