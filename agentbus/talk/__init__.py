"""Talk: one instance asks another over loopback HTTP and waits for its text. See docs/talk.md."""

from agentbus.talk.client import TalkClient, TalkError

__all__ = ["TalkClient", "TalkError"]
