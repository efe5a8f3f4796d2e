"""A parent that starts a tool, takes its callbacks, and goes by the terminal event.

    python examples/parent_consumer.py python -m examples.recipe_scraper https://example.com/cake

The tool learns from its environment where to report. Its standard output and its exit code are
only for people: what counts is the event that ends the job.
"""

import os
import secrets
import subprocess
import sys
import uuid

from agentbus.jobs import Failed, Progress, Succeeded, Warned
from agentbus.jobs.receiver import CallbackReceiver

PREFIX = "RECIPE_"
LOOK_S = 2.0
"""How long the last callback of a tool that has ended may take."""


def main(command: list[str]) -> int:
    job_id, secret = f"job-{uuid.uuid4()}", secrets.token_hex(32)
    with CallbackReceiver(secret, needs_timestamp=True) as receiver:
        inbox = receiver.expect(job_id)
        told = {
            "TRANSPORT": "callback",
            "JOB_ID": job_id,
            "CALLBACK_URL": receiver.url(job_id),
            "CALLBACK_SECRET": secret,
            "CALLBACK_ALLOWED_HOSTS": "127.0.0.1",
        }
        environment = os.environ | {PREFIX + name: value for name, value in told.items()}
        tool = subprocess.Popen(command, env=environment, stdout=sys.stderr)
        try:
            while True:
                has_ended = tool.poll() is not None
                arrival = inbox.next(LOOK_S)
                match arrival and arrival.event:
                    case Progress(stage=stage, pct=pct):
                        print(f"… {stage}" + ("" if pct is None else f" {pct:g}%"))
                    case Warned(message=message):
                        print(f"! {message}")
                    case Succeeded(result=result):
                        print(f"= {result['title']}, {len(result['steps'])} steps")
                        return 0
                    case Failed(code=code, message=message):
                        print(f"x {code}: {message}")
                        return 1
                    case None if has_ended:
                        print("x lost: the tool has ended without a word")
                        return 1
        finally:
            tool.kill()
            tool.wait()


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: parent_consumer.py COMMAND [ARGUMENT]...")
    sys.exit(main(sys.argv[1:]))
