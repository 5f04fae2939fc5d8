"""The stages of a preparation, one a file, each named for what it yields. None holds more than a part of the rows.

Between two stages the rows lie on the disk, a part a file; a part holds whole users, and parts ascend by user.
"""
