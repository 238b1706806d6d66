#!/usr/bin/env bash
# Where an error happened, as seen by programs built in different ways: with and without optimisation, PIE or not, gcc and clang,
# C++, the library linked statically, without debug information, without symbols, loaded late, replaced. Prints TAP.
set -u
root=${TERN_ROOT:-$(cd "$(dirname "$0")/../.." && pwd)}
build=$(cd "${TERN_TEST_BIN:?the build folder of the tests}/.." && pwd)
source=$root/tests/core/place_program.c
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
count=0

result() { # STATUS NAME
    count=$((count + 1))
    if [ "$1" -eq 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; fi
}

if ! grep -q "libdw\.so" "$build/libtern.so" || ! ldconfig -p | grep -q "libdw\.so"; then
    echo "1..0 # SKIP no libdw (Debian: libdw-dev)"
    exit 0
fi

# A library with a sanitizer needs a program with the same one.
flags=()
if nm "$build/libtern.so" | grep -q ' U __asan_init'; then
    flags+=(-fsanitize=address,undefined)
    export ASAN_OPTIONS=detect_leaks=0
fi
link=("$source" -I"$root/include" -L"$build" -ltern -Wl,-rpath,"$build" -lpthread -DWITH_MODULES)

all_lines() { # NAME COMPILER FLAGS...
    local name=$1
    shift
    if ! command -v "$1" >/dev/null; then
        count=$((count + 1))
        echo "ok $count - $name # SKIP no $1"
        return
    fi
    "$@" "${flags[@]}" "${link[@]}" -o "$work/program" && "$work/program"
    result $? "$name"
}

one_text() { # NAME PATTERN COMPILER FLAGS...
    local name=$1 pattern=$2 text
    shift 2
    "$@" "${flags[@]}" "${link[@]}" -o "$work/program" && text=$("$work/program" one) && [[ $text == $pattern ]]
    local status=$?
    [ $status -eq 0 ] || echo "# $text"
    result $status "$name"
}

all_lines "gcc -O0" gcc -g -O0
all_lines "gcc -O2" gcc -g -O2
all_lines "gcc, not PIE" gcc -g -O1 -no-pie
all_lines "C++" g++ -g -O1 -x c++ -std=c++17
all_lines "DWARF 4" gcc -gdwarf-4 -O1
all_lines "compressed tables" gcc -g -gz=zlib -O1
one_text "no debug information" "raise_one+0x*: item: the tensor is NULL" gcc -O1
one_text "no symbols" "program+0x*: item: the tensor is NULL" gcc -O1 -s
if [ ${#flags[@]} -eq 0 ]; then
    all_lines "clang -O2" clang -g -O2
    all_lines "clang -O0" clang -g -O0
    all_lines "clang, DWARF 4" clang -gdwarf-4 -O1

    # libdw is not used if it would run out of memory.
    one_text "with little memory" "program+0x*: item: the tensor is NULL" gcc -g -O1 -DLITTLE_MEMORY

    # The library's sources in the program itself: their own frames must not be taken for the user's.
    mkdir "$work/objects"
    (cd "$root" && for file in core/*.c text/*.c tensor/*.c; do
        gcc -std=gnu11 -g -O1 -fopenmp -DTN_HAVE_LIBDW=1 -I. -Iinclude -c "$file" -o "$work/objects/$(basename "$file" .c).o" || exit 1
    done && gcc -std=gnu11 -I. -Iinclude -x c -c core/revision.c.in -o "$work/objects/revision.o")
    link=("$source" -I"$root/include" "$work"/objects/*.o -fopenmp -lxxhash -lm)
    all_lines "linked statically" gcc -g -O0

    # Loaded with dlopen by a program that has its own thread-local variables.
    cat >"$work/late.c" <<'END'
#include <dlfcn.h>
#include <stdio.h>
static _Thread_local char mine[200];
int main(int argc, char **argv) {
    (void)argc;
    mine[0] = 1;
    void *library = dlopen(argv[1], RTLD_NOW);
    double (*item)(void *) = library ? (double (*)(void *))dlsym(library, "tn_item") : 0;
    const char *(*message)(void) = library ? (const char *(*)(void))dlsym(library, "tn_error_message") : 0;
    if (!item || !message) {
        printf("# %s\n", dlerror());
        return 1;
    }
    item(0);
    puts(message());
    return 0;
}
END
    gcc -g "$work/late.c" -o "$work/late" && text=$("$work/late" "$build/libtern.so") && [[ $text == "late.c:14: item: "* ]]
    status=$?
    [ $status -eq 0 ] || echo "# $text"
    result $status "loaded late"
fi

# The program's own library, and another version of it: while the first is loaded, and in its place.
cat >"$work/part.c" <<'END'
#include <tern/tensor.h>
void part_raise(int times);
void part_raise(int times) {
    tn_item(NULL);
    if (times > 1) {
        tn_error_clear();
        tn_ndim(NULL);
    }
}
END
cat >"$work/whole.c" <<'END'
#include <dlfcn.h>
#include <tern/tensor.h>
static void raise_in(void *library, int times) {
    void (*raise)(int) = library ? (void (*)(int))dlsym(library, "part_raise") : NULL;
    if (raise) {
        raise(times);
    }
    printf("%.20s\n", tn_error_message());
    tn_error_clear();
}
int main(int argc, char **argv) {
    (void)argc;
    void *library = dlopen(argv[1], RTLD_NOW);
    raise_in(library, 1);
    rename(argv[2], argv[1]);
    raise_in(library, 1);
    raise_in(library, 2);
    dlclose(library);
    raise_in(dlopen(argv[1], RTLD_NOW), 1);
    return 0;
}
END
tern=(-I"$root/include" -L"$build" -ltern -Wl,-rpath,"$build")
part() { gcc -g -shared -fPIC "${flags[@]}" "$work/part.c" "${tern[@]}" -Wl,--build-id -o "$1"; }
part "$work/part.so" && sed -i '1i // a line before' "$work/part.c" && part "$work/new.so" &&
    gcc -g "${flags[@]}" "$work/whole.c" "${tern[@]}" -o "$work/whole" &&
    text=$("$work/whole" "$work/part.so" "$work/new.so") &&
    [[ $text == "part.c:4: item: "*$'\n'"part_raise+0x"*$'\n'"part_raise+0x"*$'\n'"part.c:5: item: "* ]]
status=$?
[ $status -eq 0 ] || echo "# ${text//$'\n'/; }"
result $status "a library that is rebuilt while the program runs"
echo "1..$count"
