"""The disposable copy of what is retained, in a private Redis: streams to read, documents to find.

SQLite is the truth; all that is here can be made again from it. This package is the only one that
speaks to Redis. Its errors are `ProjectionError` and below; none of redis-py's leave it.
"""
