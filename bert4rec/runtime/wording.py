"""Numbers as people read them."""


def rounded(number: float) -> str:
    """Return three digits, or all before the decimal point: 3.66, 0.412, 40, 1,390."""
    return f"{number:,.0f}" if abs(number) >= 100 or number == round(number) else f"{number:.3g}"


def counted(number: float, noun: str) -> str:
    """Return a number and what it counts: 1 epoch, 1.5 epochs, 2 processes, 3 histories."""
    text = rounded(number)
    if text == "1":
        return f"1 {noun}"
    is_consonant_y = noun.endswith("y") and noun[-2] not in "aeiou"
    return f"{text} {noun[:-1]}ies" if is_consonant_y else f"{text} {noun}{'es' if noun.endswith(('s', 'x')) else 's'}"


def clock(seconds: float) -> str:
    """Return `1:02:03`, or `2:03` below an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
