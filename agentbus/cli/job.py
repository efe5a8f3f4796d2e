"""`agentbus job`: run a tool and follow its job, follow one on a broker, or take callbacks.

Owns what goes where: the result (or every event) to stdout, all else to stderr. Main thread.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

from agentbus.cli.entry import EXIT_INTERRUPTED, EXIT_OK, Arguments, complain
from agentbus.cli.job_view import JobView, PlainView, missing_words, view
from agentbus.cli.numbers import optional_number, whole_number
from agentbus.cli.output import print_json
from agentbus.errors import BusError
from agentbus.jobs.brokers import open_transport
from agentbus.jobs.emitter import Cancellation
from agentbus.jobs.events import SEQ_MAX, Succeeded, check_job_id, decode_event, encode_event
from agentbus.jobs.inbox import Arrival, JobInbox
from agentbus.jobs.running import exit_code, run_job
from agentbus.jobs.settings import PREFIX
from agentbus.limits import PORT_MAX

SILENCE_S = 2.0
"""Before a follower who sees nothing is told that it is waiting."""

_LOOK_S = 0.2
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def job(arguments: Arguments) -> int:
    """One of the commands; its exit code."""
    if arguments["run"]:
        return _run(arguments)
    if arguments["tail"]:
        return _tail(arguments)
    if arguments["list"]:
        return _list(arguments)
    return _cancel(arguments) if arguments["cancel"] else _receive(arguments)


def _run(arguments: Arguments) -> int:
    job_id = check_job_id(arguments["--job"] or str(uuid.uuid4()))
    cancellation, abort = Cancellation(), Cancellation()
    with _interrupts(cancellation, abort), view(job_id) as shown:
        end = run_job(
            [arguments["COMMAND"], *arguments["ARGUMENT"]],
            job_id,
            arguments["--sink"],
            show=lambda arrival: _show(shown, arrival, ndjson=arguments["--ndjson"]),
            log=shown.log,
            prefix=arguments["--prefix"],
            cancellation=cancellation,
            abort=abort,
        )
    if isinstance(end.terminal, Succeeded) and not arguments["--ndjson"]:
        print_json(end.terminal.result)
    return end.exit_code


@contextmanager
def _interrupts(cancellation: Cancellation, abort: Cancellation) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM cancels the job, the next one kills it."""

    # The one thing that a handler may do whatever it interrupts, itself included.
    arrived: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ask() -> None:
        for wish in (cancellation, abort):
            arrived.get()
            wish.request()

    threading.Thread(target=ask, name="interrupts", daemon=True).start()
    before = {number: signal.signal(number, lambda *_: arrived.put(None)) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tail(arguments: Arguments) -> int:
    job_id = check_job_id(arguments["ID"])
    first = whole_number(arguments["--from"], "--from", SEQ_MAX)
    inbox = JobInbox(job_id, first)
    with (
        closing(open_transport(arguments["--broker"])) as transport,
        _later(f"still waiting for event {first} of job {job_id}") as has_come,
    ):
        for document in transport.follow(job_id, first, threading.Event()):
            has_come()
            try:
                inbox.put(decode_event(document))
            except BusError as error:  # the broker keeps what strangers and other jobs sent, too
                complain(f"passed over: {error.message}")
                continue
            arrival = inbox.next(0)
            if arrival is None:
                continue  # at least once, so sometimes again
            _complain_of_missing(arrival)
            _print_line(document)
            if inbox.terminal is not None:
                return exit_code(inbox.terminal, EXIT_OK)
    return EXIT_OK


@contextmanager
def _later(message: str) -> Iterator[Callable[[], None]]:
    """Say it in a moment, unless what is given is called before."""
    timer = threading.Timer(SILENCE_S, complain, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def _list(arguments: Arguments) -> int:
    from agentbus.cli.output import console, table
    from agentbus.cli.running import need_daemon

    asked = {"open": arguments["--open"], "limit": optional_number(arguments, "--limit")}
    with need_daemon() as daemon:
        answer = daemon.ask("job_list", params=asked)
    if arguments["--json"]:
        print_json(answer)
        return EXIT_OK
    jobs, callbacks = answer["jobs"], answer["callbacks"]
    columns = ("Job", "State", "Code", "Last event", "Opened", "Last heard of", "Cancel")
    console().print(
        table(
            f"Jobs ({len(jobs)})",
            columns,
            (
                (
                    job["job_id"],
                    job["outcome"] or job["state"],
                    job["code"],
                    None if job["last_seq"] < 0 else job["last_seq"],
                    job["opened_at"],
                    job["last_event_at"],
                    job["cancel"],
                )
                for job in jobs
            ),
        )
    )
    if callbacks["pending"] or callbacks["dead"]:
        print(f"Callbacks: {callbacks['pending']} waiting, {callbacks['dead']} given up")
    return EXIT_OK


def _cancel(arguments: Arguments) -> int:
    job_id = check_job_id(arguments["ID"])
    with closing(open_transport(arguments["--broker"])) as transport:
        transport.cancel(job_id, "cancelled by agentbus job cancel")
        if not transport.has_begun(job_id):
            complain(f"job {job_id} has not begun; it is told to end when it does")
    return EXIT_OK


def _receive(arguments: Arguments) -> int:
    from agentbus.jobs.receiver import CallbackReceiver

    secret = os.environ.get(PREFIX + "CALLBACK_SECRET") or None
    wanted = arguments["--job"]
    shown = PlainView()
    trouble: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    with CallbackReceiver(
        secret,
        host=arguments["--host"],
        port=whole_number(arguments["--port"], "--port", PORT_MAX),
        welcome=None if wanted is not None else partial(_print_beside, trouble),
    ) as receiver:
        inbox = receiver.expect(check_job_id(wanted)) if wanted is not None else None
        if secret is None:
            complain(f"{PREFIX}CALLBACK_SECRET is not set: callbacks are taken unsigned")
        shown.log(f"listening on {receiver.url(wanted or 'JOB_ID')}")
        try:
            if inbox is not None:
                return _print_to_end(inbox)
            raise trouble.get()
        except KeyboardInterrupt:
            pass
    return EXIT_INTERRUPTED if inbox is not None else EXIT_OK


def _print_beside(trouble: queue.SimpleQueue[BaseException], inbox: JobInbox) -> None:
    """Every job's events are printed by a thread of its own: an event is one write.

    What cannot be printed must not be taken any more, so it ends the whole.
    """

    def print_all() -> None:
        try:
            _print_to_end(inbox)
        except OSError as error:
            trouble.put(error)

    threading.Thread(target=print_all, name="job events", daemon=True).start()


def _print_to_end(inbox: JobInbox) -> int:
    while True:
        arrival = inbox.next(_LOOK_S)
        if arrival is not None:
            _complain_of_missing(arrival)
            _print_line(encode_event(arrival.event))
        elif inbox.terminal is not None:
            return exit_code(inbox.terminal, EXIT_OK)


def _show(shown: JobView, arrival: Arrival, *, ndjson: bool) -> None:
    shown.show(arrival)
    if ndjson:
        _print_line(encode_event(arrival.event))


def _complain_of_missing(arrival: Arrival) -> None:
    if arrival.missing is not None:
        complain(missing_words(arrival.missing))


def _print_line(document: bytes) -> None:
    sys.stdout.write(document.decode() + "\n")
    sys.stdout.flush()
