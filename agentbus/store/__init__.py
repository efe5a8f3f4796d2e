"""SQLite: the truth. The only package with SQL."""
