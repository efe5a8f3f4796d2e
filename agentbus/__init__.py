"""Agentbus: a durable local message bus for coding agents."""

__version__ = "0.1.0"
