#!/usr/bin/env bash
# bare_root.sh <folder of packages> [deb|tarball|rpm]...: installs the packages in a bare Debian 12 in which neither the
# source nor the build is, uses them as a user does (in_bare_root.sh), removes them, and looks for what stayed. Without
# formats it uses all three. `tools/dev package --try` calls it.
#
# Needs root, debootstrap and a Debian mirror; about 3 GB in TMPDIR while it runs. BARE_ROOT=FILE.tar is a bare Debian 12
# made before.
set -euo pipefail
packages=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../.." && pwd)
. "$here/root.sh"
[ "$(id -u)" = 0 ] || { echo "bare_root.sh needs root, to change the root folder" >&2 && exit 1; }

root=$(mktemp -d "${TMPDIR:-/tmp}/bare-root.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
fill_root "$root" bookworm "$(dpkg --print-architecture)"
mkdir -p "$root/packages" "$root/user"
cp "$packages"/{*.deb,*.rpm,cohort-*-Linux-*.tar.gz} "$root/packages/"
cp "$here/in_bare_root.sh" "$here/project/checkpoint.cc" "$source/comm/examples/embed.cc" "$source/comm/c/examples/ring.c" \
  "$root/user/"

in_root "$root" bash /user/in_bare_root.sh "$@"
