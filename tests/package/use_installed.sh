#!/bin/sh
# use_installed.sh <folder>: builds and runs the programs in <folder>/user against the install in <folder>/moved, with
# find_package and with pkg-config. install_test.sh calls it.
set -eu
work=$1
decoy=$work/decoy

echo "== find_package"
cmake -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$work/moved" -DDECOY="$decoy" \
  -DINCLUDED="$work/moved/include"
cmake --build "$work/user/build" -j 2
"$work/user/build/embed"
"$work/user/build/calls"
if [ -x "$work/user/build/checkpoint" ]; then "$work/user/build/checkpoint"; fi
if [ -f "$work/moved/include/cohort/trainer.h" ] && [ ! -x "$work/user/build/checkpoint" ]; then
  echo "the trainer is installed, and find_package does not find it" && exit 1
fi

echo "== pkg-config"
PKG_CONFIG_PATH=$(dirname "$(find "$work/moved" -name cohort.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046,SC2086
$CXX -std=c++20 -Wall -Wextra -Werror $CXXFLAGS -I"$decoy" "$work/user/embed.cc" -o "$work/user/embed" $(pkg-config --cflags --libs cohort)
"$work/user/embed"
echo "== pkg-config of the interface for C"
# shellcheck disable=SC2046,SC2086
$CC -std=c99 -pedantic -Wall -Wextra -Werror $CXXFLAGS -I"$decoy" "$work/user/ring.c" -o "$work/user/ring" $(pkg-config --cflags --libs cohort-c)
"$work/user/ring" | grep -q "1 ranks, around the ring 0, all-reduce 0, least -1.5 on rank 0"
mkdir "$work/user/c"
cat >"$work/user/c/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(ring LANGUAGES C)
find_package(cohort REQUIRED)
add_executable(ring ../ring.c)
target_link_libraries(ring PRIVATE cohort::c)
END
cmake -S "$work/user/c" -B "$work/user/c/build" -DCMAKE_PREFIX_PATH="$work/moved" -DCMAKE_C_FLAGS="$CXXFLAGS"
cmake --build "$work/user/c/build"
"$work/user/c/build/ring"
echo "== the program of docs/start/library.md"
# shellcheck disable=SC2046,SC2086
$CXX -std=c++20 -Wall -Wextra -Werror $CXXFLAGS -I"$decoy" "$work/user/main.cc" -o "$work/user/main" $(pkg-config --cflags --libs cohort)
"$work/user/main" | grep -qx "rank 0: 1"

echo "== a component that there is not"
cat >"$work/user/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.22)
project(wrong CXX)
find_package(cohort REQUIRED COMPONENTS comm)
END
if cmake -S "$work/user" -B "$work/user/wrong" -DCMAKE_PREFIX_PATH="$work/moved" >"$work/wrong.log" 2>&1 ||
  ! grep -q "has no component comm" "$work/wrong.log"; then
  cat "$work/wrong.log" && exit 1
fi

echo "== an element type that there is not"
cat >"$work/user/wrong.cc" <<END
#include "cohort/comm/types.h"
struct Colour {
  int red;
};
void Use(Colour* colours) { cohort::comm::Buffer(colours, 3); }
END
# shellcheck disable=SC2046
if $CXX -std=c++20 -fsyntax-only "$work/user/wrong.cc" $(pkg-config --cflags cohort) 2>"$work/wrong.log" ||
  ! grep -q "Cohort has no DataType for elements of this type" "$work/wrong.log"; then
  cat "$work/wrong.log" && exit 1
fi

if [ -x "$work/moved/bin/dlaunch" ]; then
  echo "== under the installed dlaunch"
  "$work/moved/bin/dlaunch" --nproc-per-node 2 -- "$work/user/embed"
fi
