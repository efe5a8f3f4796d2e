"""Blocking work beside the event loop, on threads that the end of the process does not wait for.

`asyncio.to_thread` would keep the adapter alive until the work is done, long after its client left.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], discard: Callable[[T], object]) -> T:
    """The result of `work`. When nobody waits for it any more, it goes to `discard`."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T) -> None:
        if done.done():
            discard(result)
        else:
            done.set_result(result)

    def fail(error: BaseException) -> None:
        if not done.done():
            done.set_exception(error)

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            _call(loop, fail, error)
        else:
            if not _call(loop, settle, result):
                discard(result)

    threading.Thread(target=run, name=work.__qualname__, daemon=True).start()
    return await done


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[T], None], value: T) -> bool:
    try:
        loop.call_soon_threadsafe(callback, value)
    except RuntimeError:  # the loop is closed: the process is ending
        return False
    return True
