"""Jobs in the ledger: their events in order, how they end, what is posted to their callbacks."""
