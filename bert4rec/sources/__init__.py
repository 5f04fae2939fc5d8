"""Read raw interactions: what a file is, which column is what, and rows of users, items and times."""
