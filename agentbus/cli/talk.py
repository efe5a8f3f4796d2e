"""`agentbus talk serve|send|result|list`: questions between instances over loopback HTTP.

Owns the options and what is printed. Runs on the main thread.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any, Final

from agentbus.cli.entry import EXIT_FAILURE, EXIT_OK, Arguments, complain
from agentbus.cli.numbers import whole_number
from agentbus.cli.output import console, print_json, table
from agentbus.cli.running import need_daemon, runtime_paths
from agentbus.config import Config, default_path, load_config
from agentbus.encoding import check_text
from agentbus.errors import ValidationError
from agentbus.limits import KIB, PORT_MAX
from agentbus.protocol.fields import check_name
from agentbus.rules.talk import is_off, is_secret

EXIT_TRY_AGAIN: Final = 75
"""Of `send` and `result`: no text, but the same may be asked again."""

START_S: Final = 15.0
SECRET_FILE_BYTES: Final = 4 * KIB
PROMPT_BYTES: Final = 256 * KIB
DEPTH_MAX: Final = 1000


def talk(arguments: Arguments) -> int:
    """Exit 0 done; of `send` and `result` 1 no text, 75 no text now."""
    if arguments["serve"]:
        return _serve(arguments)
    if arguments["send"]:
        return _send(arguments)
    if arguments["result"]:
        return _result(arguments)
    return _list(arguments)


def _serve(arguments: Arguments) -> int:
    from agentbus.launch import ensure_daemon
    from agentbus.logs import setup_logging
    from agentbus.talk.command import CommandHandler
    from agentbus.talk.handler import Handler
    from agentbus.talk.peer import Daemon, PeerHandler
    from agentbus.talk.server import KIND
    from agentbus.talk.serving import Service, serve
    from agentbus.transport.client import Client

    config = _config(arguments)
    service = Service(
        instance=check_name(arguments["--instance"], "--instance"),
        kind=_text(arguments["--kind"] or KIND, "--kind"),
        port=whole_number(arguments["--port"], "--port", PORT_MAX),
        secret=_secret(arguments),
    )
    setup_logging(None, config.log_level)
    if is_off(config.talk_peers):
        complain(f"nobody may ask yet: name who may in talk_peers of {config.path}")

    def connect(allow_start: bool) -> Client:
        return ensure_daemon(
            runtime_paths(), config.path, deadline_s=START_S, allow_start=allow_start
        )

    def told(port: int) -> None:
        print(f"{service.instance} is served at http://127.0.0.1:{port}", flush=True)

    def make_handler(daemon: Daemon) -> Handler:
        if arguments["--peer"]:
            return PeerHandler(service.instance, daemon)
        return CommandHandler(service.instance, arguments["ARGV"])

    serve(service, config, make_handler, connect, told)
    return EXIT_OK


def _send(arguments: Arguments) -> int:
    from agentbus.talk.client import TalkClient, TalkError
    from agentbus.talk.command import DEPTH_VARIABLE, INSTANCE_VARIABLE

    config = _config(arguments)
    own_name = arguments["--from"]
    if own_name is None:
        own_name = os.environ.get(INSTANCE_VARIABLE) or Path.cwd().name
    depth, said_by = arguments["--depth"], "--depth"
    if depth is None:
        depth, said_by = os.environ.get(DEPTH_VARIABLE), DEPTH_VARIABLE
    client = TalkClient(check_name(own_name, "--from"), config_path=config.path)
    try:
        reply = client.ask(
            check_name(arguments["--to"], "--to"),
            _prompt(arguments["PROMPT"]),
            depth=whole_number(depth, said_by, DEPTH_MAX),
            url=arguments["--url"],
            secret=_secret(arguments),
            idempotency_key=arguments["--key"],
        )
    except TalkError as error:
        return _no_text(arguments, error.code, error.message, error.retryable)
    about = {"from": reply.from_instance, "duration_ms": reply.duration_ms}
    return _answer(arguments, reply.text, about)


def _result(arguments: Arguments) -> int:
    from agentbus.rules.talk import TALK_CODE
    from agentbus.talk.handler import Answered
    from agentbus.talk.peer import meaning_of

    message_id = _text(arguments["MESSAGE_ID"], "MESSAGE_ID")
    with need_daemon() as daemon:
        outcome = daemon.ask("talk_result", params={"message_id": message_id})
    meant = meaning_of(outcome)
    if isinstance(meant, Answered):
        return _answer(arguments, meant.text, {"message_id": message_id})
    return _no_text(arguments, meant.code, meant.error, TALK_CODE[meant.code].retryable)


def _answer(arguments: Arguments, text: str, about: dict[str, Any]) -> int:
    if arguments["--json"]:
        print_json({"text": text, **about})
    else:
        print(text, end="" if text.endswith("\n") else "\n")
    return EXIT_OK


def _no_text(arguments: Arguments, code: str, message: str, retryable: bool) -> int:
    if arguments["--json"]:
        print_json({"error": {"code": code, "message": message, "retryable": retryable}})
    complain(f"{code}: {message}")
    return EXIT_TRY_AGAIN if retryable else EXIT_FAILURE


def _list(arguments: Arguments) -> int:
    from agentbus.talk.registry import DaemonRegistry, answers_probe

    registry = DaemonRegistry()
    living = []
    with need_daemon():
        for served in registry.all():
            if answers_probe(served):
                living.append(served)
            else:
                registry.forget(served)
    if arguments["--json"]:
        fields = ("instance", "port", "pid", "kind", "updated_at")
        rows = [{name: getattr(served, name) for name in fields} for served in living]
        print_json({"instances": rows})
    elif not living:
        print("Nothing is served. Start it: agentbus talk serve --instance NAME --peer")
    else:
        cells = [(s.instance, s.port, s.pid, s.kind, s.updated_at) for s in living]
        columns = ("instance", "port", "process", "kind", "last sign of life")
        console().print(table("Served over talk", columns, cells))
    return EXIT_OK


def _config(arguments: Arguments) -> Config:
    given = arguments["--config"]
    return load_config(default_path() if given is None else Path(given))


def _text(given: str, what: str) -> str:
    check_text(given, what)
    return given


def _secret(arguments: Arguments) -> str | None:
    """What the file holds on its one line; None without a file."""
    given = arguments["--secret-file"]
    if given is None:
        return None
    path = Path(given)
    with path.open("rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            complain(f"{path} can be read by other users: chmod 600 it")
        secret = file.read(SECRET_FILE_BYTES + 1).strip().decode("latin-1")
    if not is_secret(secret) or len(secret) > SECRET_FILE_BYTES:
        raise ValidationError(f"{path} must hold a secret of visible ASCII without spaces")
    return secret


def _prompt(given: str) -> str:
    if given != "-":
        return given
    try:
        prompt = sys.stdin.buffer.read(PROMPT_BYTES + 1)
        if len(prompt) > PROMPT_BYTES:
            raise ValidationError(f"the prompt on stdin is over {PROMPT_BYTES} bytes")
        return prompt.decode()
    except UnicodeDecodeError as error:
        raise ValidationError(f"stdin is not UTF-8 at byte {error.start}") from None
