"""One run, from settings and a dataset folder to a run folder with its report."""
