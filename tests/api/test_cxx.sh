#!/usr/bin/env bash
# The public macros in C++: macros.cc, which uses every one, is compiled by g++ and clang++ as C++11 to C++20 and run.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
build=$(cd "${TERN_TEST_BIN:-$root/build/test/tests}/.." && pwd)
case "$(ldd "$build/libtern.so")" in *asan* | *tsan* | *ubsan*) echo "a library with a sanitizer"; exit 77 ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for name in $(sed -n 's/^ *#define \(TN_[A-Z][A-Z0-9_]*\)\( .*\|(.*\)$/\1/p' "$root"/include/tern/*.h "$root"/include/tern/sys/*.h | sort -u); do
    grep -qw "$name" "$here/macros.cc" || { echo "macros.cc has no $name"; exit 1; }
done

ran=0
for compiler in g++ clang++; do
    command -v $compiler >/dev/null || continue
    for standard in c++11 c++14 c++17 c++20; do
        $compiler -std=$standard -Wall -Wextra -Werror -I"$root/include" "$here/macros.cc" -L"$build" -ltern "-Wl,-rpath,$build" \
            -o "$work/macros" || { echo "$compiler -std=$standard"; exit 1; }
        "$work/macros" || { echo "$compiler -std=$standard: it fails"; exit 1; }
        ran=$((ran + 1))
    done
done
[ $ran -gt 0 ] || { echo "no C++ compiler"; exit 77; }
echo "$ran programs"
