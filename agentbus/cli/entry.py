"""What every command line has in common: arguments, exit codes, and errors as one readable line.

Owns the mapping from errors to exit codes. Never lets a traceback out. Runs on the main thread.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from agentbus import __version__
from agentbus.cli.text import for_terminal
from agentbus.errors import BusError, UnavailableError, ValidationError

EXIT_OK: Final = 0
EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_RUNNING: Final = 3
EXIT_INTERRUPTED: Final = 130

ERROR_CHARACTERS: Final = 2000

Arguments: TypeAlias = dict[str, Any]


class NotRunningError(UnavailableError):
    """The command needs a daemon and none runs; it never starts one by itself."""

    def __init__(self) -> None:
        super().__init__("no daemon is running; start one: agentbus daemon --detach")


def parse(usage: str, argv: Sequence[str] | None) -> Arguments:
    """The arguments by the usage text. Raises ValidationError; --help and --version exit."""
    with warnings.catch_warnings():
        # docopt 0.6.2 has two invalid escapes, reported where it is compiled for the first time.
        warnings.simplefilter("ignore")
        from docopt import DocoptExit, docopt
    given = sys.argv[1:] if argv is None else list(argv)

    def parsed(words: list[str]) -> Arguments:
        return dict(docopt(usage, words, version=f"agentbus {__version__}"))

    def fits(words: list[str]) -> bool:
        try:
            parsed(words)
        except DocoptExit:
            return False
        return True

    try:
        return parsed(given)
    except DocoptExit as refused:
        reason, _, _ = str(refused.code).partition("Usage:")
        reason = reason.strip().rstrip(".") or _what_is_wrong(usage, given)
        if any(fits([*given[:at], "--", *given[at:]]) for at in range(len(given))):
            reason += "; if that is not meant for agentbus, write -- before what it belongs to"
        raise ValidationError(f"{reason}; --help shows what is possible") from None


def _what_is_wrong(usage: str, given: Sequence[str]) -> str:
    """docopt says no more than that it found no usage that fits."""
    known = re.split(r"[\s\[\]()|]+", usage)
    options = [word.partition("=")[0] for word in given if word.startswith("-")]
    unknown = next((option for option in options if option not in known), None)
    if not given:
        return "a command is missing"
    if not given[0].startswith("-") and given[0] not in known:
        return f"there is no command {given[0]!r}"
    if unknown is not None:
        return f"there is no option {unknown!r}"
    return "these arguments do not go together"


def run(command: Callable[[], int]) -> int:
    """Run a command; its errors become a line on stderr and an exit code."""
    _fill_standard_streams()
    if not logging.root.handlers:
        # What the store warns of is for a daemon's log; by default it would go to stderr as it is.
        logging.root.addHandler(logging.NullHandler())
    try:
        code = command()
        sys.stdout.flush()
        return code
    except NotRunningError as error:
        return _fail(error.message, EXIT_NOT_RUNNING)
    except ValidationError as error:
        return _fail(error.message, EXIT_USAGE)
    except BusError as error:
        return _fail(error.message, EXIT_FAILURE)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone; without this the interpreter complains at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except OSError as error:
        return _fail(str(error), EXIT_FAILURE)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        return _fail(f"internal fault, please report it: {what}", EXIT_FAILURE)


def _fill_standard_streams() -> None:
    """Those that we were started without, before a file or a socket gets the number of one.

    Whoever closed one wants nothing of it: what is written there goes nowhere.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - stays


def complain(message: str) -> None:
    """One line on stderr."""
    print(f"agentbus: {for_terminal(message, ERROR_CHARACTERS)}", file=sys.stderr)


def _fail(message: str, code: int) -> int:
    complain(message)
    return code
