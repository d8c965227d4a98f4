"""A module that complains and cannot be imported."""

import sys

print("loud", file=sys.stderr)
raise RuntimeError("broken")
