#!/bin/sh
# install_test.sh <build folder> <program>: installs the build, moves what was installed elsewhere, and there builds and
# runs the program with find_package and with pkg-config.
set -eu
build=$1 program=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" >"$work/install.log" || { cat "$work/install.log" && exit 1; }
mv "$work/first" "$work/moved"
mkdir "$work/user"
cp "$here"/project/* "$program" "$work/user"

echo "== find_package"
cmake -G Ninja -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$work/moved"
cmake --build "$work/user/build"
"$work/user/build/embed"
if [ -x "$work/user/build/checkpoint" ]; then "$work/user/build/checkpoint"; fi
if [ -f "$work/moved/include/cohort/trainer/checkpoint.h" ] && [ ! -x "$work/user/build/checkpoint" ]; then
  echo "the trainer is installed, and find_package does not find it" && exit 1
fi

echo "== pkg-config"
PKG_CONFIG_PATH=$(dirname "$(find "$work/moved" -name cohort.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046,SC2086
$CXX -std=c++20 $CXXFLAGS "$work/user/embed.cc" -o "$work/user/embed" $(pkg-config --cflags --libs cohort)
"$work/user/embed"

if [ -x "$work/moved/bin/dlaunch" ]; then
  echo "== under the installed dlaunch"
  "$work/moved/bin/dlaunch" --nproc-per-node 2 -- "$work/user/embed"
fi
