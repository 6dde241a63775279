#!/usr/bin/env python3
"""Walks the release checklist of docs/project/release.md: `release.py --dry-run [DIST]` prints each item as ok or missing.

DIST is the folder of the packages (dist unless given). The script changes nothing and publishes nothing: a person does the
last steps, which the page lists. It ends with 1 while an item is missing, and where there is no git clone.
"""
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_LINES = 40  # of a release in the changelog


def git(*arguments):
    """The output of git, or None: it fails or is not here."""
    if shutil.which("git") is None:
        return None
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.stdout.strip() if ran.returncode == 0 else None


def is_clone():
    """Whether ROOT is a clone itself, not only a folder in one."""
    top = git("rev-parse", "--show-toplevel")
    return top is not None and pathlib.Path(top).resolve() == ROOT


def version():
    return re.search(r"^project\(cohort VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"), re.M)[1]


def section(text, number):
    """(state in parentheses or an empty text, number of lines) of a version's section; None if there is none."""
    found = re.search(rf"^## {re.escape(number)}(?: \(([^)]*)\))?\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return (found[1] or "", len(found[2].strip().splitlines())) if found else None


def check_version(number, _):
    tags = git("tag", "--list", f"v{number}")
    yield tags == "", f"version {number} (CMakeLists.txt) has no tag yet", "raise the version in CMakeLists.txt"


def check_changelog(number, _):
    found = section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), number)
    yield found is not None, f"CHANGELOG.md has a section {number}", f"write it: ## {number} (DATE)"
    if found:
        state, lines = found
        yield bool(re.fullmatch(r"\d{4}-\d\d-\d\d", state)), f"its heading has a date (now: {state or 'nothing'})", "put the date there"
        yield lines <= MOST_LINES, f"it has {lines} lines, at most {MOST_LINES}", "shorten it: what users get, by part"


def check_tree(_, __):
    yield git("status", "--porcelain") == "", "the tree has no change that is not committed", "commit or remove it"
    yield git("rev-parse", "--abbrev-ref", "HEAD") == "main", "the branch is main", "git switch main"


def check_tests(_, __):
    record = ROOT / "build/release/ci-passed"  # .ci/run writes it at its end
    passed = record.read_text(encoding="utf-8").strip() if record.exists() else ""
    yield passed != "" and passed == git("rev-parse", "HEAD"), \
        f".ci/run passed for this commit (now: {passed[:12] or 'for none'})", "bash .ci/run in a bare Debian 12"


NAMES = ("libcohort0", "libcohort-dev", "dlaunch", "cohort-trainer")
# A kind of files, their names for the version {0}, and the command that makes them.
PACKAGES = (
    ("wheel", ["dlaunch-{0}-*.whl"], "tools/dev wheel"),
    ("Debian packages", [f"{name}_{{0}}-*.deb" for name in NAMES], "tools/dev package"),
    ("RPM", [f"{name.replace('-dev', '-devel')}-{{0}}-*.rpm" for name in NAMES], "tools/dev package"),
    ("tarballs", ["cohort-{0}.tar.gz", "cohort-{0}-Linux-*.tar.gz"], "tools/dev package"),
    ("list of linked libraries", ["cohort-{0}.cdx.json"], "tools/dev package"))


def packages(dist, pattern, number):
    """The regular files in dist of one of PACKAGES' names."""
    return sorted(file for file in dist.glob(pattern.format(number)) if file.is_file() and not file.is_symlink())


def check_packages(number, dist):
    for name, patterns, command in PACKAGES:
        lacking = [pattern.format(number) for pattern in patterns if not packages(dist, pattern, number)]
        found = [file.name for pattern in patterns for file in packages(dist, pattern, number)]
        yield not lacking, f"{name} of {number} in {dist.name}/" + (f": no {', '.join(lacking)}" if lacking else f": {', '.join(found)}"), command


def check_sums(number, dist):
    sums = dist / "SHA256SUMS"
    lines = sums.read_text(encoding="utf-8", errors="replace").split("\n") if sums.is_file() else []
    parsed = [(re.fullmatch(r"([0-9a-f]{64}) [ *](.+)", line), line) for line in lines if line.strip()]
    listed = {match[2]: match[1] for match, _ in parsed if match}
    kept = [file for _, patterns, _ in PACKAGES for pattern in patterns for file in packages(dist, pattern, number)]
    wrong = [file.name for file in kept if listed.get(file.name) != hashlib.sha256(file.read_bytes()).hexdigest()]
    remedy = f"cd {dist.name} && sha256sum *[-_]{number}[-_.]* > SHA256SUMS"
    yield bool(kept) and not wrong, "SHA256SUMS has every package" + (f"; not {', '.join(wrong[:4])}" if wrong else ""), remedy
    others = [line for match, line in parsed if not match]
    if others:
        yield False, f"each line of SHA256SUMS is a checksum and a name; not {others[0][:40]!a}", remedy
    signed = False
    if (dist / "SHA256SUMS.asc").exists() and shutil.which("gpg"):
        signed = subprocess.run(["gpg", "--verify", dist / "SHA256SUMS.asc", sums], capture_output=True, check=False).returncode == 0
    yield signed, "SHA256SUMS.asc is a valid signature", f"gpg --armor --detach-sign {dist.name}/SHA256SUMS"


ITEMS = (("version", check_version), ("changelog", check_changelog), ("tree", check_tree), ("tests", check_tests),
         ("packages", check_packages), ("signatures", check_sums))


def walk(dist):
    """The number of items that are missing; prints all."""
    number, missing = version(), 0
    for title, check in ITEMS:
        print(title)
        for holds, text, remedy in check(number, dist):
            missing += not holds
            print(f"  {'ok     ' if holds else 'missing'}  {text}" + ("" if holds else f"\n             remedy: {remedy}"))
    print(f"{missing} items are missing" if missing else f"version {number} is ready; the last steps are in docs/project/release.md")
    return missing


if __name__ == "__main__":
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__.strip().replace("release.py", "tools/dev release"))
        sys.exit()
    if len(sys.argv) < 2 or sys.argv[1] != "--dry-run" or len(sys.argv) > 3:
        sys.exit(__doc__)
    if not is_clone():
        reason = f"git finds no clone at {ROOT}" if shutil.which("git") else "there is no program git"
        sys.exit(f"tools/dev release: {reason}, and the checklist is that of a clone")
    sys.exit(bool(walk(pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "dist").resolve())))
