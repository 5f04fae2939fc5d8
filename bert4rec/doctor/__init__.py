"""What a training needs of this machine, looked at before it starts: each check is a line, good or bad."""
