"""The demonstration's story: a question, an answer, a long message, and two deaths.

Decides what the two agents do and what counts as proof. Every proof compares what a sender was
promised (message id, sequence) with what a receiver was handed. Runs on the main thread.
"""

from __future__ import annotations

import hashlib
import statistics
from typing import Any, Final

from agentbus.demo.puppet import Answer, Puppet
from agentbus.demo.throwaway import ThrowawayBus
from agentbus.demo.transcript import Transcript
from agentbus.limits import KIB

CHANNEL: Final = "harbour"
WAIT_SECONDS: Final = 20
LONG_BYTES: Final = 32 * KIB
COUNTED: Final = 12
KILL_DURING: Final = 6
"""The daemon is killed while this one of the counted messages is on its way."""


class Story:
    """Ada asks, Bob answers; then the daemon dies, then Bob does."""

    def __init__(self, bus: ThrowawayBus, transcript: Transcript) -> None:
        self._bus = bus
        self._transcript = transcript
        self._agents: list[Puppet] = []
        self._send_ms: list[float] = []

    def run(self) -> None:
        """Play all scenes. Raises BusError when one cannot be played."""
        try:
            ada, bob = self._meet()
            self._question_and_answer(ada, bob)
            self._long_message(ada, bob)
            self._daemon_dies(ada, bob)
            bob = self._receiver_dies(ada, bob)
            self._times()
        finally:
            for agent in self._agents:
                agent.end()

    # --- scenes -----------------------------------------------------------------------------------

    def _meet(self) -> tuple[Puppet, Puppet]:
        self._transcript.scene("Two agents, each a process with an MCP server of its own")
        ada, bob = self._start("Ada"), self._start("Bob")
        for agent in (ada, bob):
            tools = agent.wait_started()
            who = agent.call("whoami")
            self._say(
                f"{agent.name} is {who.result['display_name']} in conversation "
                f"{who.result['conversation']}; first call took {who.took_ms:.0f} ms"
            )
        self._say("nobody started a daemon: the first call did")
        self._say(f"each has the tools {', '.join(tools)}")
        created = ada.call("create_channel", name=CHANNEL)
        self._say(f"Ada creates the channel {created.result['channel']}")
        for agent in (ada, bob):
            agent.call("subscribe", channel=CHANNEL)
            self._say(f"{agent.name} subscribes to {CHANNEL}")
        return ada, bob

    def _question_and_answer(self, ada: Puppet, bob: Puppet) -> None:
        self._transcript.scene("A question and its answer")
        bob.begin("receive", channels=[CHANNEL], wait_seconds=WAIT_SECONDS)
        self._say(f"Bob waits for up to {WAIT_SECONDS} s")
        question = self._send(ada, "How many ships are in the harbour?", type="question")
        heard = self._heard("Bob", bob.finish("receive"))
        answer = self._send(
            bob, "Three, and one is leaving.", type="answer", reply_to=question["message_id"]
        )
        replied = self._heard(
            "Ada", ada.call("receive", channels=[CHANNEL], wait_seconds=WAIT_SECONDS)
        )
        self._transcript.check(
            "A message reaches a waiting agent with the id that its sender was told",
            _ids(heard) == [question["message_id"]] and _ids(replied) == [answer["message_id"]],
            f"question {question['message_id']}, answer {answer['message_id']}",
        )
        self._transcript.check(
            "An answer names the message that it answers",
            [message.get("reply_to") for message in replied] == [question["message_id"]],
            f"reply_to of the answer is {replied[0].get('reply_to') if replied else 'missing'}",
        )

    def _long_message(self, ada: Puppet, bob: Puppet) -> None:
        self._transcript.scene(f"A message of {LONG_BYTES // KIB} KiB")
        text = ("The tide table, line by line. " * LONG_BYTES)[:LONG_BYTES]
        sent = self._send(ada, text, type="report", subject="Tide table")
        self._say("Bob asks for it with max_kib; by default a result stays small for his model")
        heard = self._heard(
            "Bob",
            bob.call("receive", channels=[CHANNEL], wait_seconds=WAIT_SECONDS, max_kib=64),
        )
        same = [message["content"] for message in heard] == [text]
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._transcript.check(
            f"{LONG_BYTES // KIB} KiB arrive whole",
            same and _ids(heard) == [sent["message_id"]],
            f"{len(text)} bytes, SHA-256 {digest}..., equal at both ends: {same}",
        )

    def _daemon_dies(self, ada: Puppet, bob: Puppet) -> None:
        self._transcript.scene("kill -9 of the daemon while a message is on its way")
        promised: list[dict[str, Any]] = []
        killed = successor = 0
        for number in range(1, COUNTED + 1):
            arguments = {"channel": CHANNEL, "content": f"ship {number}", "type": "count"}
            ada.begin("send", **arguments, operation_id=f"ship-{number}")
            if number == KILL_DURING:
                killed = self._bus.kill_daemon()
                self._say(f"daemon {killed} is killed; Ada's send {number} has no answer yet")
                receipt = ada.finish("send")
                successor = self._bus.ask("status")["pid"]
                self._say(f"daemon {successor} has taken over; Ada's send is answered after all")
            else:
                receipt = ada.finish("send")
                self._send_ms.append(receipt.took_ms)
            promised.append(receipt.result)
        self._say(f"Ada has receipts for ship 1 to ship {COUNTED}")
        heard: list[dict[str, Any]] = []
        while len(_ids(heard, first_time=True)) < COUNTED:
            part = self._heard(
                "Bob", bob.call("receive", channels=[CHANNEL], wait_seconds=WAIT_SECONDS)
            )
            if not part:
                break
            heard += part
        told = [receipt["message_id"] for receipt in promised]
        got = _ids(heard, first_time=True)
        sequences = [message["sequence"] for message in heard if not message.get("redelivered")]
        self._transcript.check(
            "Nothing that was acknowledged is lost when the daemon is killed",
            set(told) <= set(got) and killed != successor,
            f"{len(told)} receipts, {len(set(told) & set(got))} of them received; "
            f"daemon {killed} killed, {successor} went on",
        )
        self._transcript.check(
            "Nothing is doubled without a mark, and the order is kept",
            got == told and sequences == sorted(sequences),
            f"sequences {', '.join(map(str, sequences))}",
        )
        again = ada.call(
            "send", channel=CHANNEL, content="ship 1", type="count", operation_id="ship-1"
        ).result
        self._say(f"Ada repeats send 1 with its operation id: duplicate {again['duplicate']}")
        self._transcript.check(
            "A repeated send has one effect, across the death of the daemon",
            again["duplicate"] is True and again["message_id"] == told[0],
            f"the second answer is the first receipt, {again['message_id']}",
        )

    def _receiver_dies(self, ada: Puppet, bob: Puppet) -> Puppet:
        self._transcript.scene("kill -9 of Bob just after he was handed a message")
        bob.call("receive", channels=[CHANNEL])  # confirms all earlier ones
        sent = self._send(ada, "Fog is coming.", type="warning")
        first = self._heard(
            "Bob", bob.call("receive", channels=[CHANNEL], wait_seconds=WAIT_SECONDS)
        )
        bob.kill()
        self._agents.remove(bob)
        self._say("Bob is killed before he made another call; a new Bob resumes the conversation")
        bob = self._start("Bob")
        bob.wait_started()
        second = self._heard(
            "Bob", bob.call("receive", channels=[CHANNEL], wait_seconds=WAIT_SECONDS)
        )
        marks = [message.get("redelivered", False) for message in second]
        self._transcript.check(
            "What a dead agent may not have read comes again, marked as redelivered",
            _ids(first) == _ids(second) == [sent["message_id"]] and marks == [True],
            f"message {sent['message_id']} came twice, redelivered the second time: {marks}",
        )
        third = self._heard("Bob", bob.call("receive", channels=[CHANNEL]))
        self._transcript.check(
            "What was confirmed does not come again",
            third == [],
            f"the next receive brought {len(third)} messages",
        )
        return bob

    def _times(self) -> None:
        self._transcript.scene("Times, as the agents saw them through the MCP client")
        typical_ms, longest_ms = statistics.median(self._send_ms), max(self._send_ms)
        self._say(
            f"{len(self._send_ms)} sends, each answered after its commit to disk: "
            f"median {typical_ms:.1f} ms, longest {longest_ms:.1f} ms"
        )

    # --- helpers ----------------------------------------------------------------------------------

    def _start(self, name: str) -> Puppet:
        session = f"demo-{name.lower()}"
        agent = Puppet(name, session, self._bus.config, self._bus.environment)
        self._agents.append(agent)
        return agent

    def _send(self, agent: Puppet, content: str, **fields: Any) -> dict[str, Any]:
        answer = agent.call("send", channel=CHANNEL, content=content, **fields)
        self._send_ms.append(answer.took_ms)
        self._say(
            f"{agent.name} sends #{answer.result['sequence']} {_quoted(content)}"
            f"  ({answer.took_ms:.1f} ms)"
        )
        return answer.result

    def _heard(self, name: str, answer: Answer) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = answer.result["messages"]
        for message in messages:
            mark = "  REDELIVERED" if message.get("redelivered") else ""
            self._say(
                f"{name} receives #{message['sequence']} from "
                f"{message['sender']['display_name']}: {_quoted(message['content'])}{mark}"
            )
        if not messages:
            self._say(f"{name} receives nothing")
        return messages

    def _say(self, line: str) -> None:
        self._transcript.say(line)


def _ids(messages: list[dict[str, Any]], first_time: bool = False) -> list[str]:
    return [
        message["message_id"]
        for message in messages
        if not (first_time and message.get("redelivered"))
    ]


def _quoted(content: str) -> str:
    return f'"{content}"' if len(content) <= 60 else f'"{content[:40]}..." ({len(content)} bytes)'
