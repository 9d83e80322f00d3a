"""What goes wrong with data, in one line that says what was given, what was expected and how to mend it."""


class DataError(Exception):
    """Data that are missing, damaged or not what they say they are."""


class DataWarning(UserWarning):
    """The data can be used, but not for what one would think: files that are not official, another set than asked for."""
