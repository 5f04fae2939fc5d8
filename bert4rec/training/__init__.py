"""Train, evaluate and report: one run, from settings and a dataset folder to a run folder."""
