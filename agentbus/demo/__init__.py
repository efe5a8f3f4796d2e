"""The demonstration: two agents on a throw-away bus, and what they prove about it."""
