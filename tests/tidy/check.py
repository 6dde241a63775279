#!/usr/bin/env python3
"""The repository checks itself: `tests/tidy/check.py [rule...]` prints what breaks a rule, and fails if anything does.

Without arguments it runs all rules. Exit status 77 means that the only rule asked for cannot be checked here."""

import sys

import classes
import documents
import formatting
import layering
import lengths
import tree
import words

RULES = {**layering.RULES, **lengths.RULES, **classes.RULES, **words.RULES, **documents.RULES, **formatting.RULES}
SKIPPED = 77


def main(names):
    unknown = [n for n in names if n not in RULES]
    if unknown:
        print(f"check.py: no rule {', '.join(unknown)}; there are: {' '.join(RULES)}", file=sys.stderr)
        return 2
    repository = tree.load()
    broken = 0
    skipped = 0
    for name in names or RULES:
        try:
            for path, line, message in RULES[name](repository):
                print(f"{path}:{line}: {message} [{name}]")
                broken += 1
        except LookupError as reason:
            print(f"skipped: tidy.{name}: {reason}")
            skipped += 1
    if broken:
        print(f"{broken} places break a rule")
        return 1
    return SKIPPED if names and skipped == len(names) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
