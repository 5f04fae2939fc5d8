"""Keep the stand-in out of all other tests: its modules are not collected, since an import replaces torch.cuda."""

collect_ignore = ["cuda.py", "plugin.py"]
