"""Files of interactions as rows: what a file is, and how its bytes become rows of text or numbers."""
