"""The one kind of error a user can cause.

Its message is a single line that says what was given, what is allowed and what to do next. The command
line prints that line and exits with code 2; everything else that escapes is a defect of ours.
"""


class InputError(ValueError):
    """Something given from outside cannot be used; the message says what and what to do."""
