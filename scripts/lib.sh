# Functions for the scripts in this folder. This file is sourced, not run.

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $*"
  exit 1
}

# need_debian PACKAGE COMMAND...: installs PACKAGE if COMMAND fails.
need_debian() {
  local package=$1
  shift
  if "$@" >/dev/null 2>&1; then return; fi
  install_debian "$package"
  "$@" >/dev/null 2>&1 || die "'$*' still fails with Debian's package $package installed"
}

# install_debian PACKAGE...: installs with apt, as root or with sudo. If that is impossible, it prints what to install.
install_debian() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "please install: $*"
    as_root=(sudo)
  fi
  command -v apt-get >/dev/null || die "please install: $*"
  say "installing $*"
  if [ -z "${apt_updated:-}" ]; then
    "${as_root[@]}" apt-get update -qq >/dev/null || die "apt-get update failed; please install: $*"
    apt_updated=1
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
    die "apt-get could not install: $*"
}

# need_linker: installs a C compiler and the C library's files, with which Rust links. Rust's
# installer does not have them. One crate (ring, for https) also compiles C.
need_linker() {
  if echo 'int main(void) { return 0; }' | cc -x c - -o /dev/null >/dev/null 2>&1; then return; fi
  install_debian gcc libc6-dev
  echo 'int main(void) { return 0; }' | cc -x c - -o /dev/null >/dev/null 2>&1 || die "cc cannot link with Debian's gcc and libc6-dev installed"
}

# want_debian PACKAGE...: installs missing packages. If that is impossible, it prints a note and
# continues. For optional packages: without them tests are skipped with a message.
want_debian() {
  local package missing=()
  command -v dpkg-query >/dev/null || { say "not a Debian system: continuing without $*"; return 0; }
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] || (install_debian "${missing[@]}") || say "continuing without ${missing[*]}"
}

# python_with MODULE PACKAGE: prints the path of a Python 3 that has MODULE: the one on PATH, or
# Debian's Python after installing PACKAGE.
python_with() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c "import $1" >/dev/null 2>&1; then
      printf '%s\n' "$python"
      return
    fi
  done
  install_debian "$2"
  /usr/bin/python3 -c "import $1" >/dev/null 2>&1 || die "/usr/bin/python3 has no module $1 with Debian's package $2 installed"
  printf '/usr/bin/python3\n'
}

# unpack_debian FOLDER SUITES ALONE PACKAGE...: downloads packages of other Debian releases (SUITES:
# names in quotes, the first one wins) with the libraries that they need, the C library included, and
# unpacks them into FOLDER. Nothing is installed. ALONE (or '') is downloaded without its
# dependencies. NAME/SUITE takes a package of that suite. Prints a note and returns 1 if the packages
# are not available.
unpack_debian() {
  local folder=$1 suites=$2 alone=$3 work mirror suite
  shift 3
  command -v apt-get >/dev/null && command -v dpkg >/dev/null || { say "no Debian: $* is not fetched"; return 1; }
  work=$(mktemp -d)
  # A separate apt configuration: the machine's package sources are not changed.
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -E '/debian/?$' | sort -u | head -n 1)
  [ -n "$mirror" ] || { say "apt has no Debian mirror: $* is not fetched"; rm -rf "$work"; return 1; }
  mkdir -p "$work"/{lists/partial,cache/archives/partial,parts,debs}
  touch "$work/status"
  for suite in $suites; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
  done >"$work/sources.list"
  cat >"$work/conf" <<CONF
Dir::State "$work"; Dir::State::status "$work/status"; Dir::State::lists "$work/lists"; Dir::Cache "$work/cache";
Dir::Etc::sourcelist "$work/sources.list"; Dir::Etc::sourceparts "$work/parts"; APT::Sandbox::User "root";
APT::Default-Release "${suites%% *}"; APT::Install-Recommends "false";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false"; Acquire::Languages "none";
CONF
  if ! (
    export APT_CONFIG=$work/conf
    apt-get update -qq && apt-get install -qq --download-only -y "$@" &&
      { [ -z "$alone" ] || (cd "$work/cache/archives" && apt-get download -qq "$alone"); }
  ) >"$work/log" 2>&1; then
    say "$* cannot be had: $(tail -n 1 "$work/log")"
    rm -rf "$work"
    return 1
  fi
  rm -rf "$folder.new"
  mkdir -p "$folder.new"
  for deb in "$work"/cache/archives/*.deb; do dpkg -x "$deb" "$folder.new"; done
  rm -rf "$folder" "$work"
  mv "$folder.new" "$folder"
}

# own_libraries FOLDER FILE...: makes programs use the C library and the libraries that unpack_debian
# unpacked into FOLDER. Libraries with a search path of their own would ignore the program's.
own_libraries() {
  local folder=$1 file loader
  shift
  loader=$(find "$folder/" -name 'ld-linux-x86-64.so.2' -print -quit)
  find "$folder/" -type f \( -name 'libLLVM*.so*' -o -name 'libclang*.so*' -o -name 'libamd_comgr.so*' \
    -o -name 'libhiprtc*.so*' \) -exec patchelf --remove-rpath {} \;
  for file in "$@"; do
    patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$folder/usr/lib/x86_64-linux-gnu" "$(realpath "$file")"
  done
}
