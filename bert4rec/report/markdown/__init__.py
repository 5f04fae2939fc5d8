"""Reports as Markdown, for terminals and files."""
