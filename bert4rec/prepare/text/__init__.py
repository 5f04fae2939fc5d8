"""Readers of text: blocks, rows of CSV, JSON lines."""
