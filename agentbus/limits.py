"""Fixed limits: numbers that are part of the contract and deliberately not settings.

Units are in the names. The settable numbers are in config.py.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

WHOLE_MAX = 2**63 - 1
"""The largest whole number that SQLite stores, so the largest that anything here may be."""

PORT_MAX = 65535

PROTOCOL_VERSION = 3
"""Version of the adapter-daemon protocol; both sides must agree exactly."""

FRAME_BYTES = 8 * MIB
"""Largest internal JSON-RPC frame, newline not counted; enforced before accumulating more."""

STDIN_FRAME_BYTES = 16 * MIB
"""Largest line that the adapter takes from its harness (the SDK itself has no limit)."""

PREFETCH_MIB_MAX = 64
"""Largest delivery window that can be set, of one adapter with all its conversations."""

OUT_BUFFER_BYTES = 32 * MIB
"""Output of an adapter, in either direction, that waits to be taken."""

CONNECTION_OUT_BUFFER_BYTES = PREFETCH_MIB_MAX * MIB + OUT_BUFFER_BYTES
"""Unsent output of one daemon connection; a client that lets more pile up is disconnected. A whole
window and the answers beside it must fit, or a slow reader with a large window would be cut off
again after every new attach."""

RESULT_BYTES = 4 * MIB
"""Hard ceiling of one receive or search result, JSON counted once."""

HEARTBEAT_SECONDS = 10.0
ATTACHMENT_EXPIRY_SECONDS = 30.0
"""An attachment without liveness for so long is released."""

HANDOFF_FLUSH_MS = 20
HANDOFF_FLUSH_REPORTS = 100
"""Handoff reports are committed after so long or so many, whichever comes first."""

SHUTDOWN_GRACE_SECONDS = 5.0
ADAPTER_RETRY_SECONDS = 30.0
"""How long an adapter retries an operation by itself, always with the same operation id."""

IN_FLIGHT_PER_ATTACHMENT = 32
REPORTS_IN_FLIGHT_PER_ATTACHMENT = 4 * HANDOFF_FLUSH_REPORTS
"""Handoff reports wait for their group commit, so they are counted apart from other requests."""

IN_FLIGHT_BYTES = 64 * MIB
"""Of requests being worked on in the whole daemon; beyond either bound: `overloaded`."""

NAME_BYTES = 128
"""Channel and agent names, types, threads and tags: 1 to 128 UTF-8 bytes."""

OPERATION_ID_BYTES = 128
SUBJECT_CHARACTERS = 120
TAGS = 32
REFERENCES = 64
JSON_DEPTH = 32
"""Deepest nesting of arrays and objects accepted from outside."""

SEARCH_PAGE_DEFAULT = 100
SEARCH_PAGE_MAX = 1000
CURSOR_BYTES = 32
"""Of the token that continues a search."""

SEARCH_TEXT_BYTES = 4 * KIB
SEARCH_WORDS = 64
"""Words and phrases of one search text; more are no question that somebody asks."""

SEARCH_SECONDS = 1.0
"""Time limit of one search, waiting for its turn included. Redis serves nobody meanwhile, so it is
well below the patience of whoever else waits for Redis."""

GAPS_PER_RESULT = 256

MEMORY_CHANGES = 100
"""Changed memories that an attach names at most, the newest ones."""

BATCH_OPERATIONS = 256
BATCH_BYTES = 4 * MIB
"""A group commit takes at most so much from the ledger's mailbox."""

PRUNE_ROWS = 500
"""Rows that one cleanup slice removes before sends get their turn again."""

LOG_FILE_BYTES = 16 * MIB
LOG_FILES = 4

INSPECTION_OUTPUT_BYTES = 64 * KIB
INSPECTIONS_AT_ONCE = 32
"""Runs of the inspection command, one per sender."""

INSPECTIONS_WAITING = 256
"""Mutations that wait for one of those runs to end; beyond: `overloaded`."""

INSPECTION_REASON_CHARACTERS = 1000
"""Of a denial's reason, as its caller sees it; a longer one is cut."""

WAIT_UNKNOWN_CLIENT_SECONDS = 50
"""Longest effective receive wait for a client whose tool limit is not known."""

DEFAULT_CHANNEL = "general"

# --- peer messaging ---

PEER_ID_CHARACTERS = 80
"""Of a delivery id, a message id, a thread or a capability in an argument."""

PEER_RECIPIENTS = 100
PEER_RECIPIENT_CHARACTERS = 256
PEER_BODY_CHARACTERS = 65_536
PEER_TEXT_CHARACTERS = 2000
"""Of the summary of a progress and of the reason for asking a person."""

PEER_ACTION_CHARACTERS = 4000
"""Of a proposed action and of a person's instructions."""

PEER_DESCRIPTION_CHARACTERS = 1000
PEER_CAPABILITIES = 50
PEER_DISPLAY_CHARACTERS = 120
PEER_RUNTIME_CHARACTERS = 64
PEER_HOST_CHARACTERS = 255
"""Of a session in the directory, which shows the beginning of what is longer."""

PEER_MISSING_ITEMS = 20
PEER_PAGE_MAX = 100
PEER_CURSOR_CHARACTERS = 1024
PEER_THREADS = 100
PEER_WAIT_SECONDS = 50
PEER_COLLECT_SECONDS = 45
PEER_REPLY_DUE_SECONDS_MIN = 60
PEER_REPLY_DUE_SECONDS_MAX = 604_800

PEER_ATTEMPTS = 5
"""Claims of one delivery that end without an answer before a person is asked."""

PEER_UNANSWERED_SECONDS = 86_400
PEER_CONFIDENCE = 0.75
"""A checkpoint below it asks a person."""

CONSULTATION_REQUESTS = 4
CONSULTATION_SECONDS = 300
"""What may be asked of others while one piece of work is handled, and for how long."""

NOT_LISTENING_SECONDS = 120.0
"""Attached, but without a call for so long and without a wait: nobody would notice a request."""

LEASE_RENEWAL_SECONDS = 2.0
"""An adapter renews what it holds so often, or three times in a lease, whichever is more often."""

HUMAN_PREFIX = "human:"
"""Of the agent names of people, which only the daemon gives."""

TALK_PREFIX = "talk:"
"""Of the agent names of those who ask over talk, which only the daemon gives."""

INBOX_PREFIX = "@"
"""Of the channel that holds what is sent to an agent: `@` and its name."""

# --- jobs ---

JOBS_AGENT = "job:emitter"
JOB_APPLICATION = "job"
"""Whose sessions emit the events of jobs; their conversations are the jobs. Nobody to write to."""

JOB_REASON_CHARACTERS = 200
"""Of why a job shall end."""

JOB_WAIT_MS_MAX = 60_000
"""A request that waits for a job is answered after so long at most."""

JOB_WAITS_MAX = 2048
"""Requests that wait for jobs at once, each some kilobytes; beyond: `overloaded`."""

JOB_EVENTS_MAX = 1000
JOB_EVENTS_BYTES = MIB
"""Of one page of a job's events, one event at least."""

JOB_PAGE_MAX = 1000
"""Jobs or dead letters of one answer."""

CALLBACK_ATTEMPTS = 3
CALLBACK_ATTEMPTS_MAX = 100
CALLBACK_HOSTS_MAX = 64
