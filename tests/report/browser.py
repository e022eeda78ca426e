"""Where a browser is: `python -m tests.report.browser` says so, and fails where there is none."""

import os
import shutil
import sys

NONE = "no chromium here: 'make test-browser' installs one, COFAIR_CHROMIUM names one"


def chromium() -> str | None:
    """Return the path of a chromium, or None."""
    named = os.environ.get("COFAIR_CHROMIUM")
    if named:
        return shutil.which(named)
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


if __name__ == "__main__":
    found = chromium()
    print(f"browser tests run with {found}" if found else f"browser tests are left out: {NONE}")
    sys.exit(0 if found else 1)
