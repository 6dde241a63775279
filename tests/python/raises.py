"""The check of exceptions that the tests share."""


def raises(kind, call, *parts):
    """The error of a call, which must be of this kind, or of one of these, and name these parts."""
    try:
        call()
    except kind as error:
        for part in parts:
            assert part in str(error), f"{part!r} is not in {error}"
        return error
    raise AssertionError(f"no {kind}")
