"""The errors that a person can mend: each is shown as one line, and the process ends with status 2."""


class UserError(Exception):
    """Something that the person who typed the command can mend: what is wrong, where, what to do."""


class SettingsError(UserError):
    """A setting that is unknown, of the wrong type, or impossible."""


class DataError(UserError):
    """Input, or a dataset folder, that cannot be used."""
