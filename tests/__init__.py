"""The tests, a folder for each package of the source; tests/support holds what they share.

system/ has tests of the whole: disks that fail, processes that are killed, load, browsers, Spark. project/ has tests of
the documentation and of the checks themselves. Test modules import each other's helpers from tests.support alone.
"""

import pytest

pytest.register_assert_rewrite("tests.support")
