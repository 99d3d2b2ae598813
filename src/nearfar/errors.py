"""Errors whose message is for a user: it says what is wrong, and what to do about it.

Each is one of Python's own kinds too, so that `except ValueError` catches what it always has. The command line prints
them as one line. Any other error is a bug in nearfar, and keeps its traceback.
"""


class NearfarError(Exception):
    """What a user can mend; the message says how."""

    exit_code = 2  # of the command line


class InputError(NearfarError, ValueError):
    """A value that cannot be."""


class InputTypeError(NearfarError, TypeError):
    """A value of the wrong type."""


class StateError(NearfarError, RuntimeError):
    """Something that has to be done first, or cannot be done now."""


class MissingFileError(NearfarError, FileNotFoundError):
    """A file, or a folder, that is not there."""


class FileError(NearfarError, OSError):
    """A file, or an address, that the system does not give."""


class MissingPackageError(NearfarError, ImportError):
    """A package that nearfar works without, but this does not."""


class UnknownNameError(NearfarError, KeyError):
    """Nothing has this name."""

    __str__ = Exception.__str__  # a KeyError's would quote the whole message
