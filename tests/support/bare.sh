# A bare Debian, made by debootstrap (as root, with a network). Sourced by the scripts that try something where nothing is installed.

# make_bare RELEASE FOLDER: bookworm or trixie, minbase, in the empty FOLDER. What was downloaded once is kept as a tar file in
# ${XDG_CACHE_HOME:-~/.cache}/tern-bare; remove it for a new one.
make_bare() {
    local mirror cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/tern-bare
    mkdir -p "$cache"
    if [ ! -f "$cache/$1.tar" ]; then
        mirror=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\(http[^ ]*\).*/\2/p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1 || true)
        debootstrap --variant=minbase "$1" "$2" "${mirror:-http://deb.debian.org/debian}" >"$2.log" 2>&1 || { tail "$2.log"; return 1; }
        tar -C "$2" -cf "$cache/$1.tar.$$" .
        mv "$cache/$1.tar.$$" "$cache/$1.tar"
    else
        tar -C "$2" -xf "$cache/$1.tar"
    fi
    # How this machine reaches the network; its settings of apt, but nothing else of its.
    cp -L /etc/resolv.conf "$2/etc/" 2>/dev/null || true
    cp -r /etc/apt/apt.conf.d "$2/etc/apt/"
    # What the installer writes and debootstrap does not.
    [ -f "$2/etc/hosts" ] || printf '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n' >"$2/etc/hosts"
}
