"""Files of histories and of recommendations."""
