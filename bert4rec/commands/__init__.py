"""The sub-commands of `python -m bert4rec`."""
