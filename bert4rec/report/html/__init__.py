"""The report that people open: one file that needs no network, written from what stands in a run folder."""
