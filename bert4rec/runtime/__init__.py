"""What every part stands on: errors, the terminal, files, memory, processes."""
