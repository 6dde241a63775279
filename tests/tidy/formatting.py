"""clang-format's opinion, where it is installed."""

import re
import shutil
import subprocess

TOOL = "clang-format-19"


def check_format(tree):
    # No other version will do: they differ in details.
    if shutil.which(TOOL) is None:
        raise LookupError(f"{TOOL} is not installed; `tools/dev format` installs it")
    run = subprocess.run([TOOL, "--dry-run", "-ferror-limit=1", "--", *tree.sources()], cwd=tree.root,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    reported = set()
    for match in re.finditer(r"^([^\s:]+):(\d+):\d+: (?:warning|error):.*clang-format", run.stdout, re.MULTILINE):
        if match.group(1) not in reported:
            reported.add(match.group(1))
            yield match.group(1), int(match.group(2)), "is not formatted: run tools/dev format"


RULES = {"format": check_format}
