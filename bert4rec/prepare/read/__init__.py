"""Sources of interactions, as typed frames in file order."""
