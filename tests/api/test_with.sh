#!/usr/bin/env bash
# Compiles with_program.c with each installed compiler, as C and as C++, without a warning, and runs it; and checks what the
# compilers say about a wrong TN_WITH.
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 count=0
program=tests/api/with_program.c
flags="-Wall -Wextra -Wshadow -Werror -pedantic -Iinclude"

fail() {
    echo "failed: $*"
    failed=$((failed + 1))
}

# build COMPILER [FLAGS]: with_program.c into $work/program, what it says into $work/said
build() {
    local language=c
    case $1 in *++*) language=c++ ;; esac
    count=$((count + 1))
    # shellcheck disable=SC2086  # splitting is intended
    $1 $flags "${@:2}" -x $language $program -o "$work/program" >"$work/said" 2>&1
}

for compiler in "gcc -std=c11" "gcc -std=gnu11" "clang -std=c11" "g++ -std=c++11" "g++ -std=c++20" "clang++ -std=c++11" "clang++ -std=c++20"; do
    command -v "${compiler%% *}" >/dev/null || continue
    for level in -O0 -O2; do
        if ! build "$compiler" $level; then
            cat "$work/said"
            fail "$compiler $level"
        elif ! "$work/program"; then
            fail "$compiler $level: a wrong value"
        fi
    done
    # one error, which names the member, in few lines
    if build "$compiler" -DBAD=1 || [ "$(grep -c 'error:' "$work/said")" -ne 1 ] || ! grep -q "no member named .betta" "$work/said" ||
        [ "$(wc -l <"$work/said")" -gt 25 ]; then
        cat "$work/said"
        fail "$compiler: a wrong name"
    fi
    if build "$compiler" -DBAD=3; then
        fail "$compiler: more members than fit are dropped"
    fi
done

# gcc reuses the memory of an array that ends with the TN_WITH
for level in -O0 -O2; do
    if build "gcc -std=gnu11" $level -DBAD=2 || ! grep -q "give it a name" "$work/said"; then
        cat "$work/said"
        fail "gcc $level: an array without a name"
    fi
done
echo "TN_WITH: $count programs, $failed failed"
[ "$failed" -eq 0 ]
