"""Import the modules that the loader processes share; only their fork server imports this one.

torchrun sends SIGTERM to the process group of a training process. The training still needs the next batch to reach its
next step and save a checkpoint, so the loader processes are in another group, and end with the training.
"""

import gc
import os
from importlib import import_module

os.setpgrp()
import_module("bert4rec.feed.batches")
import_module("bert4rec.__main__")  # each spawned process first imports the main module of its training
gc.freeze()  # garbage collection writes to every object, and would copy the memory pages that all processes share
