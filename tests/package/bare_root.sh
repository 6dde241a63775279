#!/usr/bin/env bash
# bare_root.sh <folder of packages> [deb|tarball|rpm]...: installs the packages in a bare Debian 12 in which neither the
# source nor the build is, uses them as a user does (in_bare_root.sh), removes them, and looks for what stayed. Without
# formats it uses all three. `tools/dev package --try` calls it.
#
# Needs root, debootstrap and a Debian mirror; about 3 GB in TMPDIR while it runs. BARE_ROOT=FILE.tar is a bare Debian 12
# made before.
set -euo pipefail
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
die() { echo "bare_root.sh: $*" >&2 && exit 1; }
case ${1:-} in -h | --help) usage && exit ;; '') usage >&2 && exit 2 ;; esac
packages=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- deb tarball rpm
files=("$packages"/{libcohort0,libcohort-dev,dlaunch,cohort-trainer}_*.deb) # always: they bring the libraries of others
version=$(sed -E 's/.*_([0-9.]+)-.*/\1/' <<<"${files[0]}")
for format; do
  case $format in
    deb) ;;
    tarball) files+=("$packages/cohort-$version"-Linux-*.tar.gz) ;;
    rpm) files+=("$packages"/{libcohort0,libcohort-devel,dlaunch,cohort-trainer}-*.rpm) ;;
    *) die "there is no format $format" ;;
  esac
done
for file in "${files[@]}"; do [ -f "$file" ] || die "there is no $file; tools/dev package makes it"; done
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../.." && pwd)
. "$here/root.sh"
[ "$(id -u)" = 0 ] || die "it needs root, to change the root folder"

root=$(mktemp -d "${TMPDIR:-/tmp}/bare-root.XXXXXX")
trap 'rm -rf --one-file-system "$root" "$root.log"' EXIT
fill_root "$root" bookworm "$(dpkg --print-architecture)"
mkdir -p "$root/packages" "$root/user"
cp "${files[@]}" "$root/packages/"
cp "$here/in_bare_root.sh" "$here/project/checkpoint.cc" "$source/comm/examples/embed.cc" "$source/comm/c/examples/ring.c" \
  "$root/user/"

in_root "$root" bash /user/in_bare_root.sh "$@"
