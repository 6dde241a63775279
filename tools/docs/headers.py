"""The public headers: what is installed, without what only other headers include."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "tidy"))

import layering  # noqa: E402
import tree  # noqa: E402

UMBRELLA = "trainer/trainer.h"
# Installed because public headers include them; their functions are no part of the interface.
INSIDE = ("runtime/base/", "runtime/segment/", "runtime/engine/engine.h", "runtime/env.h", "comm/fail_with.h",
          "comm/cuda/", "runtime/bootstrap/bootstrap.h")


def public_headers(repository=None):
    repository = repository or tree.load()
    included = {layering.target_of(header) for _, header in repository.includes(UMBRELLA)}
    found = []
    for path in sorted(layering.installed_headers(repository)):
        if path not in repository.paths or path.startswith(INSIDE):
            continue
        if path.startswith("trainer/") and path not in included:
            continue
        found.append(path)
    return found


if __name__ == "__main__":
    print("\n".join(public_headers()))
