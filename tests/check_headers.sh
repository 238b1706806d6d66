#!/usr/bin/env bash
# Compiles each public header alone, twice over (its guard), and the macros that take lists: as C11 and as C++17, with gcc and, if
# installed, clang.
set -u
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 count=0
flags="-Wall -Wextra -Werror -pedantic -Iinclude -c -o $work/header.o"

compile() { # $work/c.c and $work/c.cc, the same text
    for compiler in "gcc -std=c11 $work/c.c" "g++ -std=c++17 $work/c.cc" "clang -std=c11 $work/c.c" "clang++ -std=c++17 $work/c.cc"; do
        command -v "${compiler%% *}" >/dev/null || continue
        # shellcheck disable=SC2086  # splitting is intended
        if ! $compiler $flags; then
            echo "failed: $1 with ${compiler% *}"
            failed=$((failed + 1))
        fi
    done
}

for header in include/tern/*.h include/tern/sys/*.h; do
    [ -e "$header" ] || continue
    count=$((count + 1))
    name=${header#include/}
    printf '#include <%s>\n#include <%s>\nextern int a_unit_must_not_be_empty;\n' "$name" "$name" | tee "$work/c.c" >"$work/c.cc"
    compile "$name"
done

tee "$work/c.c" >"$work/c.cc" <<'EOF'
#include <tern/tern.h>
tn_tensor *use_lists(tn_tensor *a, tn_tensor *b);
tn_tensor *use_lists(tn_tensor *a, tn_tensor *b) {
    tn_sequential *net = TN_SEQUENTIAL(tn_flatten_new(1, -1), tn_linear_new(4, 2));
    tn_dataset_free(TN_TRANSFORMED(tn_tensor_dataset(a, b), 1, tn_random_crop(2, 2, 0)));
    return tn_reshape(TN_CAT(0, tn_call(net, a), TN_STACK(-1, a, b)), TN_DIMS(2, 2));
}
EOF
compile "a macro with a list"
echo "headers: $count, $failed failed"
[ "$failed" -eq 0 ] && [ "$count" -gt 0 ]
