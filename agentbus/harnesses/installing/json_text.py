"""Edits JSON text in place: comments, order and formatting of all else stay as they are.

Owns where a member or an element goes in and how it comes out; the tree is made by tree-sitter,
which knows the byte range of everything. Comments and trailing commas are allowed, as the harnesses
allow them. Never writes a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from agentbus.encoding import decode_strict, encode_pretty
from agentbus.errors import UnavailableError, ValidationError

INSTALL_EXTRA = (
    "editing a harness's configuration needs tree-sitter, tree-sitter-json and tomlkit: "
    "in the folder of agentbus run pipx install --force '.[install,search]', or, in a virtual "
    "environment, pip install '.[install,search]'"
)

Path = tuple[str, ...]
"""Keys from the top of the document down."""

_INDENT = "  "

Side = Literal["next_sibling", "prev_sibling"]


class JsonText:
    """A document that is an object. Every change makes a new text; read it from `text`."""

    def __init__(self, text: str, name: str) -> None:
        """Raises ValidationError, with `name` and line, for what is no such document."""
        self.name = name
        self._mark = "\ufeff" if text.startswith("\ufeff") else ""
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._set(text.removeprefix("\ufeff").encode())

    @property
    def text(self) -> str:
        return self._mark + self._bytes.decode()

    def value(self, path: Path = ()) -> Any:
        """What is there; None if nothing is."""
        node = self._find(path)
        return None if node is None else self._read(node)

    def elements(self, path: Path) -> list[Any]:
        """Of the array at `path`; none where nothing is. Raises ValidationError for no array."""
        array = self._find(path)
        if array is None:
            return []
        self._check_array(array, path)
        return list(self._read(array))

    def raw(self, path: Path) -> str | None:
        """The text of what is there."""
        node = self._find(path)
        return None if node is None else node.text.decode()

    def replace(self, path: Path, text: str) -> None:
        """Let what is there have this text."""
        node = self._find(path)
        if node is not None:
            self._splice(node.start_byte, node.end_byte, text)

    def put(self, path: Path, value: Any) -> None:
        """Make the member at `path` this value; objects on the way are made where they lack."""
        known = self._find(path)
        if known is not None:
            if self._read(known) != value:
                indent = self._indent_of(known)
                self._splice(known.start_byte, known.end_byte, self._written(value, indent))
            return
        parent, missing = self._deepest(path)
        for key in reversed(missing[1:]):
            value = {key: value}
        indent = self._child_indent(parent)
        self._append(parent, f"{encode_pretty(missing[0])}: {self._written(value, indent)}")

    def append(self, path: Path, element: Any) -> None:
        """Put an element at the end of the array at `path`; make the array where it lacks."""
        array = self._find(path)
        if array is None:
            self.put(path, [element])
            return
        self._check_array(array, path)
        self._append(array, self._written(element, self._child_indent(array)))

    def remove(self, path: Path) -> None:
        """Take the member at `path` out, if there is one."""
        node = self._find(path)
        if node is not None:
            self._cut(node.parent)

    def remove_elements(self, path: Path, chosen: Callable[[Any], bool]) -> None:
        """Take elements out of the array at `path`."""
        while True:
            array = self._find(path)
            if array is None or array.type != "array":
                return
            found = next((one for one in _items(array) if chosen(self._read(one))), None)
            if found is None:
                return
            self._cut(found)

    def remove_from_mixed(self, path: Path, key: str, chosen: Callable[[Any], bool]) -> None:
        """Take items out of the lists `key` of the array's elements, where a list holds others too.

        The list stays, since it is somebody else's as well.
        """
        while (item := self._mixed_in(path, key, chosen)) is not None:
            self._cut(item)

    def _mixed_in(self, path: Path, key: str, chosen: Callable[[Any], bool]) -> Any:
        array = self._find(path)
        if array is None or array.type != "array":
            return None
        for element in _items(array):
            inner = self._member(element, key) if element.type == "object" else None
            if inner is None or inner.type != "array":
                continue
            found = [item for item in _items(inner) if chosen(self._read(item))]
            if found and len(found) < len(_items(inner)):
                return found[0]
        return None

    # --- the tree ---

    def _set(self, encoded: bytes) -> None:
        self._bytes = encoded
        if not encoded.strip():
            self._bytes = b"{}" + self._newline.encode()
        document = _parse(self._bytes)
        for node in _faults(document):
            raise ValidationError(
                f"{self._place(node)}: not JSON; repair it first, nothing was changed"
            )
        tops = [node for node in document.children if node.type != "comment"]
        if len(tops) != 1 or tops[0].type != "object":
            raise ValidationError(f"{self.name}: must hold one JSON object; nothing was changed")
        self._top = tops[0]

    def _find(self, path: Path) -> Any:
        node = self._top
        for key in path:
            node = None if node is None or node.type != "object" else self._member(node, key)
        return node

    def _member(self, node: Any, key: str) -> Any:
        """The last one of that name, which is the one that counts."""
        found = None
        for pair in _items(node):
            if self._read(pair.child_by_field_name("key")) == key:
                found = pair.child_by_field_name("value")
        return found

    def _read(self, node: Any) -> Any:
        try:
            return _value(node)
        except ValidationError as error:
            reason = error.message
        except RecursionError:
            reason = "nested too deep"
        raise ValidationError(f"{self._place(node)}: {reason}; nothing was changed")

    def _check_array(self, node: Any, path: Path) -> None:
        if node.type != "array":
            raise ValidationError(f"{self._place(node)}: {'.'.join(path)} must be a list")

    def _deepest(self, path: Path) -> tuple[Any, Path]:
        """The last object on the way that exists, and the keys that it lacks."""
        for depth in range(len(path) - 1, -1, -1):
            node = self._find(path[:depth])
            if node is not None:
                if node.type != "object":
                    raise ValidationError(
                        f"{self._place(node)}: {'.'.join(path[:depth])} must be an object"
                    )
                return node, path[depth:]
        raise AssertionError("the top is an object")

    def _place(self, node: Any) -> str:
        return f"{self.name}, line {node.start_point[0] + 1}"

    # --- changing the text ---

    def _splice(self, start: int, end: int, text: str) -> None:
        self._set(self._bytes[:start] + text.encode() + self._bytes[end:])

    def _append(self, container: Any, text: str) -> None:
        items = _items(container)
        indent = self._newline + self._child_indent(container)
        if not items:
            closing = "" if self._breaks_before_end(container) else self._end_of(container)
            at = container.children[-2].end_byte  # the opening brace, or the last comment
            self._splice(at, at, f"{indent}{text}{closing}")
            return
        if not self._breaks_before_end(container):
            indent = " "  # a container on one line stays on it
        comma = _comma_beside(items[-1], "next_sibling")
        if comma is not None:
            self._splice(comma.end_byte, comma.end_byte, f"{indent}{text},")
        else:
            self._splice(items[-1].end_byte, items[-1].end_byte, f",{indent}{text}")

    def _cut(self, item: Any) -> None:
        """An item with its comma and the space before it."""
        before, after = item.prev_sibling, _comma_beside(item, "next_sibling")
        if after is not None:
            self._splice(before.end_byte, after.end_byte, "")
        elif before.type == ",":
            self._splice(before.start_byte, item.end_byte, "")
        else:
            comma = _comma_beside(item, "prev_sibling")  # with a comment between
            self._splice(before.end_byte, item.end_byte, "")
            if comma is not None:
                self._splice(comma.start_byte, comma.end_byte, "")

    # --- layout ---

    def _written(self, value: Any, indent: str) -> str:
        text = encode_pretty(value)
        return text.replace("\n", self._newline + indent)

    def _indent_of(self, node: Any) -> str:
        """The white space that begins the node's line."""
        line_start = self._bytes.rfind(b"\n", 0, node.start_byte) + 1
        line = self._bytes[line_start : node.start_byte]
        return line[: len(line) - len(line.lstrip(b" \t"))].decode()

    def _child_indent(self, container: Any) -> str:
        items = _items(container)
        if items and items[0].start_point[0] != container.start_point[0]:
            return self._indent_of(items[0])
        return self._indent_of(container) + _INDENT

    def _breaks_before_end(self, container: Any) -> bool:
        closing = container.children[-1]
        space = self._bytes[closing.prev_sibling.end_byte : closing.start_byte]
        return b"\n" in space

    def _end_of(self, container: Any) -> str:
        return self._newline + self._indent_of(container)


def _parse(encoded: bytes) -> Any:
    try:
        import tree_sitter
        import tree_sitter_json
    except ImportError:
        raise UnavailableError(INSTALL_EXTRA) from None
    language = tree_sitter.Language(tree_sitter_json.language())
    return tree_sitter.Parser(language).parse(encoded).root_node


def _faults(node: Any) -> list[Any]:
    """What is wrong in the document; a trailing comma is not."""
    if not node.has_error:
        return []
    if node.is_missing:
        comma = node.prev_sibling
        is_trailing = node.parent.type == "array" and comma is not None and comma.type == ","
        return [] if is_trailing else [node]
    if node.is_error:
        after = _beside(node, "next_sibling")
        is_trailing = node.text == b"," and after is not None and after.type == "}"
        return [] if is_trailing else [node]
    return [fault for child in node.children for fault in _faults(child)]


def _items(container: Any) -> list[Any]:
    """Members or elements; what a trailing comma seems to announce is none."""
    return [
        child
        for child in container.named_children
        if child.type not in ("comment", "ERROR") and not child.is_missing
    ]


def _is_comma(node: Any) -> bool:
    return bool(node.type == "," or (node.is_error and node.text == b","))


def _beside(node: Any, side: Side) -> Any:
    """What stands next to it, comments passed over; None at the end."""
    node = getattr(node, side)
    while node is not None and node.type == "comment":
        node = getattr(node, side)
    return node


def _comma_beside(item: Any, side: Side) -> Any:
    node = _beside(item, side)
    return node if node is not None and _is_comma(node) else None


def _value(node: Any) -> Any:
    if node.type == "object":
        return {
            _value(pair.child_by_field_name("key")): _value(pair.child_by_field_name("value"))
            for pair in _items(node)
        }
    if node.type == "array":
        return [_value(child) for child in _items(node)]
    return decode_strict(node.text)
