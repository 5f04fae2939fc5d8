"""What one check has found."""

from typing import NamedTuple


class Finding(NamedTuple):
    """Under the `name` of what was looked at, in words what it is like; `advice`, what to do, where that is bad."""

    name: str
    text: str
    advice: str = ""

    @property
    def is_good(self) -> bool:
        """Whether nothing needs to be done."""
        return not self.advice

    def __str__(self) -> str:
        return f"good  {self.name}: {self.text}" if self.is_good else f"BAD   {self.name}: {self.text}; {self.advice}"
