"""Basics that all other packages use: errors, the terminal, files, memory, processes."""
