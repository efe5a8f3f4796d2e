"""Keeps the tool from being sent into the network that it runs in (SSRF).

A URL comes from whoever asks, and a page may redirect anywhere. So each address is judged: of the
URL, of every redirect, and of every name at the moment of connecting, to exactly that address.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import TypeAlias

from agentbus.errors import ValidationError
from agentbus.jobs.errors import DeliveryRefusedError
from agentbus.jobs.http import Address, Target, parse_url, unmapped
from examples.recipe_scraper.messaging import ToolError

Network: TypeAlias = IPv4Network | IPv6Network


class BlockedAddressError(DeliveryRefusedError):
    """The name leads to an address that is not on the public internet."""


class UrlGuard:
    """Lets pass what is public. `allowed` are networks that pass besides; only tests name any."""

    def __init__(self, allowed: Sequence[Network] = ()) -> None:
        self._allowed = tuple(allowed)

    def check(self, url: str) -> Target:
        """The URL taken apart. Raises ToolError `blocked_url` for one that must not be fetched."""
        try:
            return parse_url(url)
        except ValidationError as error:
            raise ToolError("blocked_url", error.message) from None

    def judge(self, host: str, address: Address) -> None:
        """Called with each address of a host before it is connected to."""
        plain = unmapped(address)
        if any(plain in network for network in self._allowed):
            return
        if not plain.is_global or plain.is_multicast or plain.is_reserved:
            raise BlockedAddressError(f"{host} leads to {address}, which is not a public address")
