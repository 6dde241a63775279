# For `tools/dev setup --peers`: the MPI libraries that come as wheels (peer-wheels.txt).

readonly wheels_file=tools/peer-wheels.txt

# A Python that has pip.
python_with_pip() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -m pip --version >/dev/null 2>&1; then printf '%s\n' "$python" && return; fi
  done
  die "setup --peers: no Python here has pip, which downloads the MPI libraries of $wheels_file. Install python3-pip."
}

# Installs each wheel of the list in build/peers/<name>, unless that very wheel is there already. pip verifies the
# checksum. The next one follows even where one fails.
install_wheels() {
  local requirement name python folder failed=
  while read -r requirement; do
    name=${requirement%%==*} folder=$PWD/build/peers/${requirement%%==*}
    if [ "$(cat "$folder/wheel.txt" 2>/dev/null)" = "$requirement" ]; then continue; fi
    python=${python:-$(python_with_pip)}
    say "downloading ${requirement%% *} into build/peers/$name"
    rm -rf "$folder.new"
    mkdir -p "$folder.new"
    printf '%s\n' "$requirement" >"$folder.new/wheel.txt"
    # Debian's Python would put them below local/.
    if DEB_PYTHON_INSTALL_LAYOUT=deb_system "$python" -m pip --disable-pip-version-check --no-input install --quiet \
      --root-user-action ignore --ignore-installed --no-deps --only-binary :all: --no-compile --require-hashes \
      --prefix "$folder.new" -r "$folder.new/wheel.txt" </dev/null; then
      rm -rf "$folder"
      mv "$folder.new" "$folder"
    else
      rm -rf "$folder.new"
      failed+=" $name"
    fi
  done < <(sed '/^#/d; /^$/d' "$wheels_file")
  [ -z "$failed" ] || die "setup --peers: pip could not install$failed (its message is above).
Check the network and the index of pip, then run tools/dev setup --peers again. The wheels are for x86-64."
}
