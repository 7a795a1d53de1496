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
  command -v dpkg-query >/dev/null || { say "no Debian: going on without $*"; return 0; }
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] || (install_debian "${missing[@]}") || say "going on without ${missing[*]}"
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
