"""The source tree as these tests read it: files, module names, imports."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("agentbus", "actors")


@dataclass(frozen=True, slots=True)
class Module:
    """One source file; `name` is dotted, a package goes by its own name."""

    name: str
    path: Path
    tree: ast.Module

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))


@functools.cache
def modules(*packages: str) -> tuple[Module, ...]:
    """Every module of the packages, parsed; of both packages if none is named."""
    found = []
    for package in packages or PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module(name, path, ast.parse(path.read_text(encoding="utf-8"))))
    return tuple(found)


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """`(line, dotted name)` of every import, wherever in the module it stands."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.name.split(".")
                up = node.level - (module.path.name == "__init__.py")
                base = ".".join([*package[: len(package) - up], *([base] if base else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if _is_module(full) else base


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
