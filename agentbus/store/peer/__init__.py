"""Direct messages: deliveries, leases, replies, decisions of people. Used by the ledger."""
