"""How many descriptors this process may have open.

Owns the soft limit, which is often too small for a process that serves many. Never lowers it, never
touches the hard one. Any thread, once at the start.
"""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)


def raise_descriptor_limit(wanted: int | None = None) -> None:
    """To `wanted`, or as far as the system lets us; None: all that it would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = hard
    if wanted is not None:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft == resource.RLIM_INFINITY or soft > limit:
            return
    if soft != limit:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (ValueError, OSError):
            _log.info("descriptor limit stays at %d", soft)
