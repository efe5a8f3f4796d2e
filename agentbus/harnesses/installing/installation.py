"""From entries to changed files: what would change, and changing it.

Owns reading, writing and backing up the files of a harness. A file is written whole and moved into
place, so that a harness never reads half of one; the first installation leaves a copy beside it,
from which the removal restores every byte as long as nobody else has changed the file since.
"""

from __future__ import annotations

import difflib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from agentbus.errors import ConflictError, ValidationError
from agentbus.harnesses.installing.entries import Element, FileEntries, Member, is_ours
from agentbus.harnesses.installing.json_text import JsonText
from agentbus.harnesses.installing.toml_text import (
    has_table,
    table_in,
    with_table,
    without_table,
)

BACKUP_SUFFIX: Final = ".before-agentbus"


@dataclass(frozen=True, slots=True)
class Change:
    """One file. `None` stands for a file that does not exist."""

    path: Path
    before: str | None
    after: str | None

    @property
    def is_none(self) -> bool:
        return self.before == self.after

    def diff(self) -> list[str]:
        """Lines of a unified diff."""
        old = "/dev/null" if self.before is None else str(self.path)
        new = "/dev/null" if self.after is None else str(self.path)
        return list(
            difflib.unified_diff(
                (self.before or "").splitlines(),
                (self.after or "").splitlines(),
                old,
                new,
                lineterm="",
            )
        )


def plan_install(files: list[FileEntries]) -> list[Change]:
    """What installing changes. Raises ValidationError for what cannot be edited; nothing is done.

    An entry under our name that is not ours is refused, an older one of ours is brought up to date.
    """
    changes = []
    for file in files:
        before = _read(file.path)
        after = _installed(before or "", file)
        changes.append(Change(file.path, before, before if after == (before or "") else after))
    return changes


def plan_uninstall(files: list[FileEntries]) -> list[Change]:
    """What removing changes: our entries go, and what only they had brought with them."""
    return [_removal(file) for file in files]


@dataclass(frozen=True, slots=True)
class Standing:
    """How an entry stands in its file. `value`: what is there in its place, None for nothing.

    `place`: of an element, its index in its list.
    """

    path: Path
    entry: Member | Element
    state: Literal["missing", "current", "outdated", "foreign"]
    value: object = None
    place: int | None = None


def examine(file: FileEntries) -> list[Standing]:
    """How each entry stands: current is what installing would leave as it is.

    Raises ValidationError for a file that cannot be read.
    """
    text = _read(file.path) or ""
    return [_standing(text, file.path, entry) for entry in file.entries]


def _standing(text: str, path: Path, entry: Member | Element) -> Standing:
    place: int | None = None
    if isinstance(entry, Member):
        value = _member(text, path, entry)
        if value is not None and not is_ours(value):
            return Standing(path, entry, "foreign", value)
    else:
        elements = JsonText(text, str(path)).elements(entry.path)
        place = next((n for n, element in enumerate(elements) if is_ours(element)), None)
        value = None if place is None else elements[place]
    if value is None:
        return Standing(path, entry, "missing")
    is_current = _installed(text, FileEntries(path, (entry,))) == text
    return Standing(path, entry, "current" if is_current else "outdated", value, place)


def carry_out(changes: list[Change], *, installing: bool) -> None:
    """Write what was planned. Backups are made before and go after a removal.

    Raises ConflictError at a file that somebody, such as the harness, wrote since it was read.
    """
    for change in changes:
        if _read(change.path) != change.before:
            raise ConflictError(
                f"{change.path} was changed by another program just now and is left as it is; "
                "run the command again"
            )
        backup = _backup(change.path)
        if installing and not change.is_none and change.before is not None and not backup.exists():
            _write(backup, change.before, like=change.path)
        if not change.is_none:
            if change.after is None:
                os.unlink(os.path.realpath(change.path))
            else:
                _write(change.path, change.after, like=change.path)
        if not installing:
            backup.unlink(missing_ok=True)


def _removal(file: FileEntries) -> Change:
    before = _read(file.path)
    if before is None:
        return Change(file.path, None, None)
    kept = _read(_backup(file.path))
    try:
        as_installed = _installed(kept or "", file, check=False)
    except ValidationError as error:
        raise ValidationError(
            f"{_backup(file.path)}: not usable as the copy of {error.message}; repair or remove it"
        ) from None
    if as_installed == before:
        return Change(file.path, before, kept)  # byte for byte as it was, or gone as it was
    after = _removed(before, kept or "", file)
    was_ours_alone = kept is None and "".join(after.split()) in ("", "{}")
    return Change(file.path, before, None if was_ours_alone else after)


def _installed(text: str, file: FileEntries, *, check: bool = True) -> str:
    for entry in file.entries:
        if isinstance(entry, Member):
            known = _member(text, file.path, entry)
            if check and known is not None and not is_ours(known):
                raise ValidationError(
                    f"{file.path}: {'.'.join(entry.path)} is there already and is not an entry of "
                    "this program; rename or remove it first, nothing was changed"
                )
            if known != entry.value:
                text = _with_member(text, file.path, entry)
        else:
            text = _with_element(text, file.path, entry)
    return text


def _removed(text: str, kept: str, file: FileEntries) -> str:
    """Without our entries, and without what they alone were in, unless it had been there before."""
    for entry in file.entries:
        if isinstance(entry, Member) and not is_ours(_member(text, file.path, entry)):
            continue
        if _is_toml(file.path):
            assert isinstance(entry, Member)
            parent, key = entry.path
            had_parent = has_table(kept, parent, str(file.path))
            text = without_table(text, parent, key, str(file.path), keep_parent=had_parent)
        else:
            text = _without(text, kept, file.path, entry)
    return text


def _without(text: str, kept: str, path: Path, entry: Member | Element) -> str:
    document, original = JsonText(text, str(path)), JsonText(kept, str(path))
    if isinstance(entry, Member):
        document.remove(entry.path)
    else:
        document.remove_elements(entry.path, is_ours)
        document.remove_from_mixed(entry.path, "hooks", is_ours)
    for depth in range(len(entry.path), 0, -1):
        container = entry.path[:depth]
        if document.value(container) in ({}, []):
            was = original.raw(container)
            if was is None:
                document.remove(container)
            elif original.value(container) in ({}, []):
                document.replace(container, was)
    return document.text


def _member(text: str, path: Path, entry: Member) -> object:
    if _is_toml(path):
        return table_in(text, *entry.path, str(path))
    return JsonText(text, str(path)).value(entry.path)


def _with_member(text: str, path: Path, entry: Member) -> str:
    if _is_toml(path):
        return with_table(text, *entry.path, entry.value, str(path))
    document = JsonText(text, str(path))
    document.put(entry.path, entry.value)
    return document.text


def _with_element(text: str, path: Path, entry: Element) -> str:
    document = JsonText(text, str(path))
    ours = [element for element in document.elements(entry.path) if is_ours(element)]
    document.remove_from_mixed(entry.path, "hooks", is_ours)
    if ours != [entry.value]:
        document.remove_elements(entry.path, is_ours)
        document.append(entry.path, entry.value)
    return document.text


def _is_toml(path: Path) -> bool:
    return path.suffix == ".toml"


def _backup(path: Path) -> Path:
    return path.with_name(path.name + BACKUP_SUFFIX)


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ValidationError(
            f"{path}: not UTF-8 at byte {error.start}; repair it first, nothing was changed"
        ) from None


def _write(path: Path, text: str, *, like: Path) -> None:
    """Through a symbolic link, with the mode that the file has or any new file would get."""
    real = Path(os.path.realpath(path))
    real.parent.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(like.stat().st_mode) if like.exists() else 0o666 & ~_umask()
    descriptor, temporary = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())  # or a failure of the machine may leave an empty file
        os.replace(temporary, real)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o077)  # the only way to read it is to set it
    os.umask(mask)
    return mask
