#!/usr/bin/env bash
# Compiles each public header alone, twice over (its guard), as C11 and as C++17, with gcc and, where it is, clang.
set -u
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 count=0
flags="-Wall -Wextra -Werror -pedantic -Iinclude -c -o $work/header.o"

for header in include/tern/*.h include/tern/sys/*.h; do
    [ -e "$header" ] || continue
    count=$((count + 1))
    name=${header#include/}
    printf '#include <%s>\n#include <%s>\nextern int a_unit_must_not_be_empty;\n' "$name" "$name" | tee "$work/c.c" >"$work/c.cc"
    for compiler in "gcc -std=c11 $work/c.c" "g++ -std=c++17 $work/c.cc" "clang -std=c11 $work/c.c" "clang++ -std=c++17 $work/c.cc"; do
        command -v "${compiler%% *}" >/dev/null || continue
        # shellcheck disable=SC2086  # words are wanted
        if ! $compiler $flags; then
            echo "failed: $name with ${compiler% *}"
            failed=$((failed + 1))
        fi
    done
done
echo "headers: $count, $failed failed"
[ "$failed" -eq 0 ] && [ "$count" -gt 0 ]
