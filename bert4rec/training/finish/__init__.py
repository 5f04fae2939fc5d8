"""What a run leaves when it has ended."""
