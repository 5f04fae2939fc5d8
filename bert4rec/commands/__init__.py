"""The sub-commands of `bert4rec`."""
