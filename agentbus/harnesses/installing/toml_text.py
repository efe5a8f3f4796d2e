"""Edits TOML text in place, by tomlkit: comments, order and formatting of all else stay.

Owns one table below a parent table: putting it in and taking it out. Never writes a file. Whatever
tomlkit makes is read again before it counts: all else must mean what it meant.
"""

from __future__ import annotations

import tomllib
from typing import Any

from agentbus.errors import UnavailableError, ValidationError
from agentbus.harnesses.installing.json_text import INSTALL_EXTRA


def table_in(text: str, parent: str, key: str, name: str) -> object:
    """What is at `parent.key`, None if nothing is. `name`: of the file, for errors."""
    tables = _document(text, name).unwrap().get(parent)
    return tables.get(key) if isinstance(tables, dict) else None


def has_table(text: str, key: str, name: str) -> bool:
    """Whether there is something under that key."""
    return key in _document(text, name)


def with_table(text: str, parent: str, key: str, values: dict[str, Any], name: str) -> str:
    """The text with the table `parent.key` holding these values, and what else it held."""
    import tomlkit
    from tomlkit.items import InlineTable

    document, meant = _document(text, name), _meaning(text)
    if parent not in document:
        document[parent] = tomlkit.table(is_super_table=True)
    tables: Any = document[parent]
    if not isinstance(tables, dict):
        raise ValidationError(f"{name}: {parent} must be a table; nothing was changed")
    if not isinstance(tables.get(key), dict):
        inline = isinstance(tables, InlineTable)
        tables[key] = tomlkit.inline_table() if inline else tomlkit.table()
    for field, value in values.items():
        if tables[key].get(field) != value:
            tables[key][field] = value
    known = meant.setdefault(parent, {}).get(key)
    meant[parent][key] = {**(known if isinstance(known, dict) else {}), **values}
    made = str(tomlkit.dumps(document))
    if not _means(made, meant, parent) and known is None:
        # Beside keys like `parent.other.field` it is put in their midst, and takes what follows in.
        added = tomlkit.document()
        added[parent] = tomlkit.table(is_super_table=True)
        added[parent][key] = values
        made = f"{text.rstrip()}\n\n{tomlkit.dumps(added)}"
    return _checked(made, meant, parent, name)


def without_table(text: str, parent: str, key: str, name: str, *, keep_parent: bool) -> str:
    """The text without the table `parent.key`, and without a parent that is empty then.

    Comments behind the table stay: for tomlkit they are part of it, for people of what follows.
    """
    import tomlkit

    document = _document(text, name)
    tables: Any = document.get(parent)
    if not isinstance(tables, dict) or key not in tables:
        return text
    behind = _behind_last_value(tables[key])
    meant = _meaning(text)
    del tables[key], meant[parent][key]
    if not tables and not keep_parent:
        del document[parent]
    cut = str(tomlkit.dumps(document))
    if not behind.strip():
        return _checked(cut, meant, parent, name)
    for place in range(len(cut), -1, -1):
        if text.startswith(cut[:place]) and text.endswith(behind + cut[place:]):
            return _checked(cut[:place] + behind + cut[place:], meant, parent, name)
    raise ValidationError(
        f"{name}: {parent}.{key} cannot be taken out without losing the comments behind it; "
        "take it out by hand, nothing was changed"
    )


def _behind_last_value(table: Any) -> str:
    """Comments and blank lines between the last value and the next table."""
    from tomlkit.items import Table

    behind = ""
    for key, item in reversed(table.value.body if isinstance(table, Table) else []):
        if key is not None:
            return _behind_last_value(item) + behind
        behind = item.as_string() + behind
    return behind


def _meaning(text: str) -> dict[str, Any]:
    return tomllib.loads(text, parse_float=str)  # as text: nan does not equal itself


def _means(text: str, meant: dict[str, Any], parent: str) -> bool:
    """Whether it says that; an empty parent says no more than none."""
    try:
        read = _meaning(text)
    except tomllib.TOMLDecodeError:
        return False
    return {**read, parent: read.get(parent) or {}} == {**meant, parent: meant.get(parent) or {}}


def _checked(text: str, meant: dict[str, Any], parent: str, name: str) -> str:
    if not _means(text, meant, parent):
        raise ValidationError(
            f"{name}: cannot be edited without changing what else is in it; write its tables with "
            "headers like [table.key], or make the change by hand; nothing was changed"
        )
    return text


def _document(text: str, name: str) -> Any:
    try:
        import tomlkit
        from tomlkit.exceptions import TOMLKitError
    except ImportError:
        raise UnavailableError(INSTALL_EXTRA) from None
    try:
        document = tomlkit.parse(text)
        tomllib.loads(text)
    except (TOMLKitError, tomllib.TOMLDecodeError) as error:
        raise ValidationError(
            f"{name}: not TOML ({error}); repair it first, nothing was changed"
        ) from None
    return document
