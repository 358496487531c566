"""How many cases each property gets.

`make slow` sets SUPERBLOOM_CASES=10000, and other cases are drawn each time.
"""

import os

CASES = int(os.environ.get("SUPERBLOOM_CASES", "1000"))
