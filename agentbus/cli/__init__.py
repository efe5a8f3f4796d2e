"""The command lines for people: `agentbus` and `agentbus-admin`."""
