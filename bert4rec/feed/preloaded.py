"""Imported by the fork server of the loader processes alone: what all of them need, and share.

torchrun sends SIGTERM to a training process with its whole group. Loader processes that obeyed would take away the
batch that the training still needs to come to its next step and save: they are in a group of their own, and end with
the training instead.
"""

import gc
import os
from importlib import import_module

os.setpgrp()
import_module("bert4rec.feed.batches")
import_module("bert4rec.__main__")  # since each process first imports what its training was started as
gc.freeze()  # a search for garbage writes on every object: each process would get copies of pages that all can share
