"""The mutations of one attachment on their way to the ledger: size, rate, order.

Owns the session's rates and, where mutations are inspected, their turns. Never decides what a
mutation does, and never answers one that went on. Belongs to the attachment's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.base import Address, Reply
from actors.messages import AttachmentMessage, LedgerMessage, Submit
from actors.turns import MutationTurns
from agentbus.clock import Clock
from agentbus.config import Config
from agentbus.errors import BusError, TooLargeError, ValidationError
from agentbus.identity import Attachment, SenderBinding
from agentbus.limits import KIB
from agentbus.protocol.operations import MutatingOperation
from agentbus.protocol.peer import PeerWriting
from agentbus.rules.rates import Rates
from agentbus.rules.receipts import digest, payload_of
from agentbus.store.changes import Change


class Mutations:
    """Each is charged when it is handed on; the ledger has what was not used given back."""

    def __init__(
        self,
        sender: SenderBinding,
        attachment: Attachment,
        ledger: Address[LedgerMessage],
        owner: Address[AttachmentMessage],
        config: Config,
        clock: Clock,
    ) -> None:
        self._sender = sender
        self._attachment = attachment
        self._ledger = ledger
        self._owner = owner
        self._inspected = bool(config.inspection_command)
        self._limit_bytes = config.max_message_kib * KIB
        self._clock = clock
        self._rates = Rates(
            config.send_messages_per_second,
            config.send_kib_per_second * KIB,
            self._limit_bytes,
            clock.monotonic_s(),
        )
        self._turns = MutationTurns(ledger)

    def submit(
        self,
        operation: MutatingOperation | PeerWriting,
        operation_id: str | None,
        reply_to: Reply,
        make: Callable[..., Change],
    ) -> None:
        """Hand on what `make` makes of the fields of every `Mutation`; the ledger answers.

        Raises ValidationError and TooLargeError.
        """
        name = f"peer {operation.NAME}" if isinstance(operation, PeerWriting) else operation.NAME
        if operation_id is None:
            raise ValidationError(f"{name}: operation_id is required on this connection")
        payload = payload_of(operation)
        size_bytes = len(payload)
        if size_bytes > self._limit_bytes:
            raise TooLargeError(
                f"{name}: the message takes at least {size_bytes} bytes, the limit is "
                f"{self._limit_bytes} (max_message_kib); shorten it, or send a reference to a file"
            )
        now_s = self._clock.monotonic_s()
        rate_ok = self._rates.reserve(size_bytes, now_s)
        change = make(
            operation_id=operation_id,
            fingerprint=digest(payload),
            sender=self._sender,
            attachment=self._attachment,
            rate_ok=rate_ok,
            retry_after_ms=0 if rate_ok else self._rates.retry_after_ms(size_bytes, now_s),
        )
        submit = Submit(change, reply_to, self._owner, size_bytes if rate_ok else 0)
        if self._inspected:
            self._turns.submit(submit)
        else:
            self._ledger.tell(submit)

    def refund(self, size_bytes: int) -> None:
        """What was charged for a mutation that was not carried out."""
        self._rates.refund(size_bytes)

    def settled(self) -> None:
        """An inspected one was answered; the next may go."""
        self._turns.settled()

    def abandon(self, error: BusError) -> None:
        """Answer those that have not gone yet."""
        for submit in self._turns.abandon():
            submit.reply_to.set_exception(error)
