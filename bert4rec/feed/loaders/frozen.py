"""Imported by the fork server of the loader processes last: what is there stays, and is never searched for garbage.

A search writes on every object: each loader process would get copies of its own of pages that all can share.
"""

import gc

gc.freeze()
