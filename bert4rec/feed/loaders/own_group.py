"""Imported by the fork server of the loader processes, and by nobody else: it leaves the launcher's process group.

torchrun sends SIGTERM to a training process with its whole group. Loader processes that obeyed would take away the
batch that the training still needs to come to its next step and save; they end with the training instead.
"""

import os

os.setpgrp()
