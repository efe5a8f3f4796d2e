"""The `agentbus mcp` process: the bus as tools for one client. Nothing else imports the SDK."""
