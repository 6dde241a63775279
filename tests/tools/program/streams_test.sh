#!/usr/bin/env bash
# Runs the command-line tools with an output that is closed, full or not read to its end, and with arguments that make
# no sense. They must give a message and the right exit status, and leave no file that is half there.
set -uo pipefail
bin=${COHORT_TEST_BIN_DIR:?}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

# expect <status> <text in the error output, or empty> <command for bash>
expect() {
  local status=0
  timeout 60 bash -c "set -o pipefail; $3" >"$folder/out" 2>"$folder/err" || status=$?
  if [ $status != "$1" ] || { [ -n "$2" ] && ! grep -q -- "$2" "$folder/err"; }; then
    printf 'status %s, expected %s and "%s": %s\n' "$status" "$1" "$2" "$3"
    cat "$folder/err"
    failed=1
  fi
}

one="all_reduce -b 8 -e 8 -n 20 -w 2"
for program in "plan list" "collperf $one"; do
  [ -x "$bin/${program%% *}" ] || continue # the tools that this build has
  expect 1 "cannot write to the standard output: No space left" "$bin/$program >/dev/full"
  expect 1 "cannot write to the standard output: Bad file" "$bin/$program >&-"
  expect 0 "" "{ $bin/$program | head -n 1; } || [ \$? = 141 ]"
  expect 2 "" "$bin/${program%% *} --no-such-option"
  expect 0 "" "$bin/${program%% *} --help"
done
# A limit on files' size is an error like a full disk, not a signal.
expect 1 "cannot write to the standard output: File too large" \
  "(ulimit -f 0; $bin/plan list 2>&1 >$folder/limited) | cat >&2"
# An error names the program and what it did not expect, as it was typed, and where the help is.
expect 2 "^collperf: not expected: -g 1$" "$bin/collperf all_reduce -g 1"
expect 2 "^Try collperf --help.$" "$bin/collperf all_reduce -g 1"
expect 2 "^plan: not expected: --such$" "$bin/plan show all_reduce ring --such"
expect 2 "^Try plan show --help.$" "$bin/plan show all_reduce ring --such"
expect 2 "^blackbox: " "$bin/blackbox --no-such-option"
for program in plan collperf blackbox; do
  expect 0 "" "$bin/$program --version | grep -Ex '$program \(cohort\) [0-9.]+, .*(UCX|CUDA|NCCL).*'"
done
expect 2 "^plan: needs a command: list, show, check, " "$bin/plan"
expect 2 "^plan: unknown command .bogus.; there are: list, show, check, " "$bin/plan bogus"
# Control characters of an argument steer no terminal, and make no lines of their own.
for command in "plan" "plan show all_reduce" "plan list --nodes" "collperf" "collperf -n"; do
  [ -x "$bin/${command%% *}" ] || continue
  ! bash -c "$bin/$command \$'a\\e[31m\\nb'" 2>"$folder/err" || { echo "no error: $command" && failed=1; }
  grep -q 'a\\x1b\[31m\\x0ab' "$folder/err" || { echo "not escaped: $command" && cat "$folder/err" && failed=1; }
done
expect 2 "" "$bin/plan show ring"
expect 2 "" "$bin/blackbox nonsense"
expect 1 "there is no process 4194303" "$bin/blackbox 4194303"
expect 2 "no operation" "$bin/collperf nonsense"

stdout=/dev/stdout
[ -e $stdout ] || stdout=/proc/self/fd/1 # a bare system may lack the links in /dev
mkdir "$folder/results"
for option in --csv --json --plot; do
  expect 1 "No such file" "$bin/collperf $one $option $folder/none/file"
  expect 1 "Is a directory" "$bin/collperf $one $option $folder"
  expect 0 "" "$bin/collperf $one $option $folder/results/a && test -s $folder/results/a"
  expect 0 "" "$bin/collperf $one $option /dev/null && test -c /dev/null"
  expect 0 "" "{ echo first; $bin/collperf $one $option $stdout; echo last; } >$folder/together"
  [ "$(sed -n '1p;$p' "$folder/together" | tr '\n' ' ')" = "first last " ] && [ "$(wc -l <"$folder/together")" -gt 8 ] ||
    { echo "$option $stdout: $(cat "$folder/together")" && failed=1; }
  # Interrupted at any moment: the old file, whole.
  echo old >"$folder/results/a"
  expect 124 "" "timeout -s INT 0.3 $bin/collperf all $option $folder/results/a"
  [ "$(cat "$folder/results/a")" = old ] || { echo "$option: an interrupted run changed the file" && failed=1; }
done
[ "$(ls "$folder/results")" = a ] || { echo "left: $(ls "$folder/results")" && failed=1; }
exit $failed
