#!/usr/bin/env bash
# Tern on aarch64, on a machine of another kind: cross-compiled with Debian's packages for arm64, and run by qemu-user. Kernels
# against ref, operations, a training step on one rank and on two, text. The packages (debootstrap: as root, with a network) stay in
# build/aarch64. usage: tests/test_aarch64.sh
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=$root/build/aarch64
system=$work/system
machine=(qemu-aarch64 -L "$system")
mkdir -p "$work"

if [ ! -f "$work/complete" ]; then
    if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null; then
        echo "skipped: to fetch the packages takes root and debootstrap"
        exit 0
    fi
    echo "fetching Debian's packages for arm64 (log: build/aarch64/packages.log)"
    rm -rf "$work/packages" "$system"
    mkdir "$system"
    mirror=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\(http[^ ]*\).*/\2/p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1 || true)
    packages=libc6-dev,libgomp1,zlib1g-dev,libxxhash-dev,nettle-dev,libpcre2-dev,libzstd-dev,libdw-dev,libcmocka-dev,libgloo-dev
    debootstrap --download-only --arch=arm64 --variant=minbase --include="$packages,libpng-dev,libjpeg62-turbo-dev" bookworm \
        "$work/packages" "${mirror:-http://deb.debian.org/debian}" >"$work/packages.log" 2>&1 || { tail "$work/packages.log"; exit 1; }
    for file in "$work"/packages/var/cache/apt/archives/*.deb; do
        dpkg -x "$file" "$system"
    done
    rm -rf "$work/packages"
    touch "$work/complete"
fi

ccache=$(command -v ccache >/dev/null && echo "'ccache', " || true)
cat >"$work/cross.ini" <<END
[constants]
system = ['--sysroot=$system']
[binaries]
c = [$ccache'aarch64-linux-gnu-gcc']
cpp = [$ccache'aarch64-linux-gnu-g++']
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
exe_wrapper = ['qemu-aarch64', '-L', '$system']
[built-in options]
c_args = system
cpp_args = system
c_link_args = system
cpp_link_args = system
[properties]
needs_exe_wrapper = true
sys_root = '$system'
pkg_config_libdir = ['$system/usr/lib/aarch64-linux-gnu/pkgconfig', '$system/usr/share/pkgconfig']
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
END
tests=(backends_cpu backends_ref_polynomials backends_ref_table ops_check ops_dropout ops_gradients ops_slopes)
for file in "$root"/tests/backends/test_kernels_*.c; do
    file=$(basename "$file" .c)
    tests+=("${file#test_}")
done
[ -f "$work/build/build.ninja" ] || meson setup "$work/build" "$root" --cross-file "$work/cross.ini" -Dbuildtype=plain -Doptimization=2 -Db_ndebug=false \
    -Dexamples=false -Dbench=false -Dcuda=disabled >"$work/setup.log" 2>&1 || { tail "$work/setup.log"; exit 1; }
echo "compiling for aarch64 (log: build/aarch64/build.log)"
ninja -k 0 -C "$work/build" libtern.so.0.1.0 libtern_gloo.so tools/tern "${tests[@]/#/tests/test_}" >"$work/build.log" 2>&1 ||
    { grep -A 10 'FAILED' "$work/build.log"; exit 1; }
if grep -A 6 '^../../../backends/.*warning:' "$work/build.log"; then echo "gcc warns of the kernels"; exit 1; fi

cd "$work"
tern=("${machine[@]}" "$work/build/tools/tern")
"${tern[@]}" info | grep -q '^kernels *cpu-neon, .* levels plain neon$' || { "${tern[@]}" info; echo "the level is not neon"; exit 1; }
failed=()
# one NAME: a test program, whose line is the last.
one() {
    local status=0
    TERN_OP_CHECK=brief CMOCKA_MESSAGE_OUTPUT=TAP "${machine[@]}" "build/tests/test_$1" >"$1.log" 2>&1 || status=$?
    echo "$1: $(grep -c '^ok' "$1.log") passed, $(grep -c '^not ok [0-9]* - ' "$1.log") failed"
    return $status
}
running=()
for name in "${tests[@]}"; do # as many at once as there are cores
    [ ${#running[@]} -lt "$(nproc)" ] || { wait "${running[0]%% *}" || failed+=("${running[0]#* }"); running=("${running[@]:1}"); }
    one "$name" &
    running+=("$! $name")
done
for name in "${running[@]}"; do
    wait "${name%% *}" || failed+=("${name#* }")
done

# trains RANKS FOLDER LEVEL: a few steps of a small model, on so many ranks.
trains() {
    local rank pids=()
    for ((rank = 0; rank < $1; rank++)); do
        RANK=$rank WORLD_SIZE=$1 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port TERN_CPU=$3 TERN_TIMEOUT=600 \
            "${tern[@]}" train --data 'text/train_*.bin' --model tiny --context 32 --tokens 256 --steps 3 --seed 1 --out "$2" \
            >"$2.$rank.log" 2>&1 &
        pids+=($!)
    done
    for rank in "${pids[@]}"; do
        wait "$rank" || { tail -n 20 "$2".*.log; return 1; }
    done
}
# perplexity FOLDER LEVEL
perplexity() { TERN_CPU=$2 "${tern[@]}" eval --model "$1" --data 'text/val_*.bin' | tee -a eval.log | grep -o 'perplexity [0-9.]*'; }

rm -rf text gpt one two plain eval.log
"${tern[@]}" tokenizer "$root/README.md" --vocab 300 --out gpt
"${tern[@]}" tokens "$root/README.md" --tokenizer gpt --val 0.1 --out text
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
trains 1 one neon
trains 1 plain plain
trains 2 two neon
for folder in one plain two; do
    echo "$folder: $(perplexity "$folder" neon)"
done
echo "one, by ref's kernels: $(perplexity one plain)"
python3 - eval.log <<'END' || failed+=(perplexity)
import re, sys
found = [float(x) for x in re.findall(r"perplexity ([0-9.]+)", open(sys.argv[1]).read())]
assert len(found) == 4 and all(abs(x / found[0] - 1) < 1e-4 for x in found) and found[0] < 350, found
END
"${tern[@]}" generate --model one --tokenizer gpt --prompt Tern --tokens 8 --temperature 0 >neon.txt
TERN_CPU=plain "${tern[@]}" generate --model one --tokenizer gpt --prompt Tern --tokens 8 --temperature 0 >plain.txt
cmp neon.txt plain.txt || failed+=(text)
[ ${#failed[@]} -eq 0 ] || { echo "on aarch64, these failed (logs in build/aarch64): ${failed[*]}"; exit 1; }
echo "Tern works on aarch64, as qemu-user runs it"
