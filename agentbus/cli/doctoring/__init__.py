"""What `agentbus-admin doctor` looks at: one module for each group of checks.

Each gives findings and changes nothing; `canary.py` alone uses the bus, as an agent of its own in a
channel of its own. `faults.py` names every trouble and what to do about it. Main thread.
"""
