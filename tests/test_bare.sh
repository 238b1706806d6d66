#!/usr/bin/env bash
# A newcomer's first hour on a Debian with nothing in it: clones what is committed, runs the README's commands, installs, and builds the
# README's program; as root, then as a user for whom the packages are there. usage: tests/test_bare.sh [12|13]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-12} in
12) release=bookworm ;;
13) release=trixie ;;
*) echo "usage: tests/test_bare.sh [12|13]" >&2 && exit 2 ;;
esac
[ "$(id -u)" -eq 0 ] && command -v debootstrap >/dev/null || { echo "skipped: a bare Debian takes root and debootstrap"; exit 77; }
source "$root/tests/bare.sh"
make_bare $release
echo "a bare Debian ${1:-12}: $(in_bare cat /etc/debian_version)"
git clone -q --bare "$root" "$bare/tern.git"
in_bare apt-get update -q >"$root/build/bare/log" 2>&1
in_bare apt-get install -y -q --no-install-recommends git ca-certificates >>"$root/build/bare/log" 2>&1 || { tail "$root/build/bare/log"; exit 1; }

cat >"$bare/newcomer.sh" <<'END_OF_SCRIPT'
set -euo pipefail
cd
git clone -q /tern.git tern
cd tern
./run demo
./run test $1
./run build "--prefix=$2"
meson install -C build/release >install.log || { tail install.log; exit 1; }
[ "$(id -u)" -ne 0 ] || ldconfig
sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d' >line.c
pc=$(dirname "$(find "$2" -name tern.pc)")
lib=$(dirname "$(find "$2" -name libtern.so)")
export PKG_CONFIG_PATH=$pc
# shellcheck disable=SC2046  # words are wanted
gcc -g line.c $(pkg-config --cflags --libs tern) "-Wl,-rpath,$lib" -o line
./line
END_OF_SCRIPT
in_bare bash /newcomer.sh "" /usr/local
in_bare useradd -m -s /bin/bash newcomer
in_bare su - newcomer -c 'bash /newcomer.sh core $HOME/prefix'
echo "the README's commands and its program work in a bare Debian ${1:-12}, as root and as a user"
