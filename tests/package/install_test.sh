#!/bin/sh
# install_test.sh <build folder> <source folder>: installs the build, moves what was installed elsewhere, and there
# follows the README's guide to embedding to the letter: with find_package, and with pkg-config and the compiler alone;
# then builds the example that brings a launcher of its own along, and runs it without dlaunch and with it.
set -eu
build=$1 source=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" >"$work/install.log" || { cat "$work/install.log" && exit 1; }
mv "$work/first" "$work/moved"
mkdir "$work/user"
python3 "$here/guide.py" "$source/README.md" "$work/user"
cd "$work/user"

echo "== the guide, with find_package"
cmake -G Ninja -S . -B build -DCMAKE_PREFIX_PATH="$work/moved"
cmake --build build
build/main

echo "== the guide, with pkg-config"
PKG_CONFIG_PATH=$(dirname "$(find "$work/moved" -name cohort.pc)")
export PKG_CONFIG_PATH
# The commands name the compiler that everybody has; here it is the one that built the package, sanitizers included.
mkdir bin
printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$CXX" "$CXXFLAGS" >bin/g++
chmod +x bin/g++
PATH=$work/user/bin:$PATH
export PATH
cat commands
sh -eu commands

echo "== a program with a launcher of its own"
# shellcheck disable=SC2046
g++ -std=c++20 "$source/comm/examples/embed.cc" -o embed $(pkg-config --cflags --libs cohort)
./embed

if [ -x "$work/moved/bin/dlaunch" ]; then
  echo "== under the installed dlaunch"
  "$work/moved/bin/dlaunch" --nproc-per-node 2 -- ./embed
  "$work/moved/bin/dlaunch" --nproc-per-node 2 -- ./main
fi
