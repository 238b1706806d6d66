# shellcheck shell=bash
# A Debian with nothing in it, for what users' machines lack: sourced by test_package.sh and test_bare.sh. Takes root and debootstrap.

# make_bare RELEASE (bookworm, trixie): makes it in a new folder, whose path is then in $bare. It goes when the script ends; what was
# downloaded stays in build/bare/RELEASE.tar.
make_bare() {
    local tarball=$root/build/bare/$1.tar mirror
    bare=$(mktemp -d)
    trap 'umount -l "$bare"/{proc,dev/pts,dev/shm} 2>/dev/null || true; rm -rf --one-file-system "$bare"' EXIT
    mirror=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\(http[^ ]*\).*/\2/p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1 || true)
    mirror=${mirror:-http://deb.debian.org/debian}
    mkdir -p "$root/build/bare"
    [ -f "$tarball" ] || debootstrap --variant=minbase --make-tarball="$tarball" "$1" "$bare" "$mirror" >"$root/build/bare/log" 2>&1 ||
        { tail "$root/build/bare/log"; exit 1; }
    mkdir -p "$bare"
    debootstrap --variant=minbase --unpack-tarball="$tarball" "$1" "$bare" "$mirror" >"$root/build/bare/log" 2>&1 ||
        { tail "$root/build/bare/log"; exit 1; }
    cp -L /etc/resolv.conf "$bare/etc/" 2>/dev/null || true
    cp -r /etc/apt/apt.conf.d "$bare/etc/apt/"
    mount -t proc proc "$bare/proc"
    mkdir -p "$bare/dev/pts" "$bare/dev/shm"
    mount -t devpts devpts "$bare/dev/pts"
    mount -t tmpfs tmpfs "$bare/dev/shm"
}

# in_bare COMMAND...: runs it there, in the environment of a fresh login as root.
in_bare() {
    env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb "$(command -v chroot)" "$bare" "$@" </dev/null
}
