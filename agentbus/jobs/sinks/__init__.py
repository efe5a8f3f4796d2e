"""Where a job's events go. One module per sink; `base.py` has what all of them promise."""
