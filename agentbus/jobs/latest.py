"""Progress that never keeps a tool waiting, however slow its parent is.

Owns what waits: the newest progress of each stage, nothing else. Emitted by a thread of its own,
through the same emitter, which numbers it then; so what was overtaken leaves no hole.
"""

from __future__ import annotations

import threading
from typing import Any, Final, Self

from agentbus.errors import BusError, JobClosedError
from agentbus.jobs.emitter import JobEmitter

STAGES: Final = 16
"""Stages that can wait at once; beyond, the one that has waited longest is overtaken too."""


class LatestProgress:
    """Takes progress and returns at once. For progress only: all else goes through the emitter.

    with open_job() as job, LatestProgress(job) as latest:
        for block in download:
            latest.progress("download", pct=block.pct)
    """

    def __init__(self, job: JobEmitter[Any, Any, Any]) -> None:
        self._job = job
        self._changed = threading.Condition()
        self._waiting: dict[str, tuple[float | None, str | None]] = {}
        self._is_closed = False
        self._trouble: BusError | None = None
        self._thread = threading.Thread(target=self._emit_all, name="job progress", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def progress(self, stage: str, pct: float | None = None, message: str | None = None) -> None:
        """Overtakes what waits of the stage. Raises the error of an earlier one, once."""
        with self._changed:
            trouble, self._trouble = self._trouble, None
            self._waiting.pop(stage, None)
            self._waiting[stage] = (pct, message)
            if len(self._waiting) > STAGES:
                del self._waiting[next(iter(self._waiting))]
            self._changed.notify()
        if trouble is not None:
            raise trouble

    def close(self) -> None:
        """Returns when what waits is emitted, or the job has ended."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _emit_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                stage = next(iter(self._waiting))
                pct, message = self._waiting.pop(stage)
            try:
                self._job.progress(stage, pct, message)
            except JobClosedError:
                return  # nothing that waits matters any more
            except BusError as error:
                self._trouble = error
