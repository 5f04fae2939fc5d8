"""Runs side by side: what differs between them, and how certainly one is better."""
