"""A tool that does what its arguments say, and how a test starts it.

    python -m tests.jobs.puppet WORD...

A word is an event (`accepted`, `progress`, `warning`, `succeeded`, or the code of a failure) or
something else to do: `exit:N`, `die`, `hang`, `await-cancel`, `noise`, `gap`, `pid:PATH`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from agentbus.jobs import JobEmitter, open_job


def main(words: list[str]) -> None:
    job: JobEmitter[Any, Any, Any] = open_job()
    for word in words:
        do(job, word)
    job.close()


def do(job: JobEmitter[Any, Any, Any], word: str) -> None:
    kind, _, number = word.partition(":")
    match kind:
        case "accepted":
            job.accepted("https://example.com/plum-cake")
        case "progress":
            job.progress(number or "extract", pct=50, message="half")
        case "warning":
            job.warning("no yield is given")
        case "succeeded":
            job.succeeded({"title": "Plum cake"})
        case "exit":
            job.close()
            os._exit(int(number))
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            threading.Event().wait()
        case "await-cancel":
            assert job.cancellation.wait(50)
            job.failed("cancelled", "as you wish")
        case "pid":
            Path(number).write_text(str(os.getpid()))
        case "noise":
            print("\x1b[31mnoise\x1b[0m\n", end="", flush=True)  # one write, unbuffered too
        case "gap":
            job._next_seq += 2
        case _:
            job.failed(word, f"because of {word}")


if __name__ == "__main__":
    main(sys.argv[1:])
