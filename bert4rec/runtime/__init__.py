"""Basics that every other room uses: errors, the terminal, files, memory, processes."""
