#!/usr/bin/env bash
# What the README promises, on a bare Debian: a minimal system that debootstrap makes (as root, with a network), an empty
# environment, no CUDA toolkit, a clone of what is committed. The README's demo and test, and its own program, once as root, who
# installs what is missing, and once as an ordinary user. Everything stays in build/bare/RELEASE until the next time.
# usage: tests/test_bare.sh [12|13] [PATTERN of ./run test]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-12} in
12) name=bookworm ;;
13) name=trixie ;;
*) echo "./run bare takes 12 or 13, not $1" >&2; exit 2 ;;
esac
release=${1:-12} pattern=${2:-}
[ "$(id -u)" -eq 0 ] || { echo "./run bare works as root alone: it makes a chroot"; exit 1; }
# Mounts in a namespace of their own: they end with this process, and who removes build/ does not meet the machine's devices.
[ -n "${TERN_BARE_INSIDE:-}" ] || TERN_BARE_INSIDE=1 exec unshare --mount --propagation private bash "$0" "$@"
. "$root/tests/support/bare.sh"

bare=$root/build/bare/$release
rm -rf --one-file-system "$bare"
mkdir -p "$bare"
echo "a bare Debian $release in build/bare/$release"
make_bare $name "$bare"
git clone -q --no-hardlinks "$root" "$bare/srv/tern"
sed -n '/^```c$/,/^```$/p; /^```$/q' "$root/README.md" | sed '/^```/d' >"$bare/srv/line.c"
mount -t proc proc "$bare/proc"
mount --rbind /dev "$bare/dev"
mount -t tmpfs tmpfs "$bare/dev/shm"

# as USER COMMAND: in the bare system, with what a login sets and nothing else.
as() {
    local user=$1 home=/home/$1
    [ "$user" != root ] || home=/root
    env -i /usr/sbin/chroot --userspec="$user" --groups= "$bare" /usr/bin/env HOME="$home" USER="$user" TERM=dumb \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /bin/bash -euo pipefail -c "$2" </dev/null
}
# try USER WHAT COMMAND: its last line, and a clear word.
failed=0
try() {
    local log="$bare.$1-${2// /-}.log" start=$SECONDS
    if as "$1" "$3" >"$log" 2>&1; then
        printf 'Debian %s, %s: %s: ok (%d s): %s\n' "$release" "$1" "$2" $((SECONDS - start)) "$(tail -n 1 "$log")"
    else
        failed=$((failed + 1))
        tail -n 40 "$log"
        printf 'Debian %s, %s: %s: FAILED (%d s; log: %s)\n' "$release" "$1" "$2" $((SECONDS - start)) "${log#"$root/"}"
    fi
}
# shellcheck disable=SC2016  # expanded in there
program='cd && cp /srv/line.c . && gcc -g line.c $(pkg-config --cflags --libs tern) -o line && ./line && [ "$(./line)" = "y = 2.00 x -1.00" ]'

as root 'apt-get update -q && apt-get install -y -q --no-install-recommends git' >"$bare.git.log" 2>&1 || { tail "$bare.git.log"; exit 1; }
if as root 'command -v nvcc gcc meson'; then echo "this Debian is not bare"; exit 1; fi
try root demo 'cd /srv/tern && ./run demo'
try root test "cd /srv/tern && ./run test $pattern"
try root program "cd /srv/tern && ./run build && meson install -C build/release && ldconfig && $program"
as root 'useradd -m user && chown -R user: /srv/tern'
try user demo 'cd /srv/tern && ./run demo --overwrite'
try user test "cd /srv/tern && ./run test $pattern"
try user program "$program"
[ $failed -eq 0 ] || { echo "./run bare $release: $failed of 6 failed"; exit 1; }
echo "./run bare $release: the README's commands and program work on a bare Debian $release, as root and as a user"
