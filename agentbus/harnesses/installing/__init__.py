"""Writing the bus into the configuration of a harness, and taking exactly that out again.

`installation.py` plans and carries out; `json_text.py` and `toml_text.py` edit a text in place, so
that order, comments and formatting of everything else stay; `entries.py` says what each harness
needs. Main thread of a command.
"""
