#!/usr/bin/env bash
# Installs a build into an empty folder and uses it from outside the tree, as a user would: pkg-config, a C example, a C++ program.
# A second build, which checks for dead tensors, is installed next to the first. usage: tests/test_install.sh BUILD_FOLDER
# [BUILD_FOLDER_THAT_CHECKS]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${1:?which build folder}" && pwd)
checked=$(cd "${2:-$build}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

DESTDIR="$work/install" meson install -C "$build" --no-rebuild >"$work/log" || { cat "$work/log"; exit 1; }
pc=$(find "$work/install" -name tern.pc)
export PKG_CONFIG_PATH="${pc%/*}"
cd "$work"

version=$(pkg-config --modversion tern)
lib=$(pkg-config --variable=libdir tern)
flags=$(pkg-config --cflags --libs tern)
private=$(pkg-config --static --libs tern)
case "$(ldd "$lib/libtern.so")" in *libpng16*) pictures="png16 jpeg" ;; *) pictures= ;; esac # -Dimages
for name in tern_wait gomp $pictures z xxhash nettle pcre2-8 zstd m; do
    [[ " $private " == *" -l$name "* ]] || { echo "pkg-config --static does not name -l$name: $private"; exit 1; }
done
header=$(sed -n 's/^#define TN_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' "$(pkg-config --variable=includedir tern)/tern/core.h" | paste -sd.)
[ "$version" = "$header" ] || { echo "tern.pc says $version, tern/core.h says $header"; exit 1; }
[ -e "$lib/libtern.so.${version%.*}" ] || { echo "no libtern.so.${version%.*} in $lib"; exit 1; }

# The program of docs/cpp_cmake.md: the page's lines with g++, and its CMakeLists.txt if there is a cmake.
mkdir cpp
sed -n '/^```cpp$/,/^```$/p' "$root/docs/cpp_cmake.md" | sed '/^```/d' >cpp/line.cc
sed -n '/^```cmake$/,/^```$/p' "$root/docs/cpp_cmake.md" | sed '/^```/d' >cpp/CMakeLists.txt
# shellcheck disable=SC2086  # splitting is intended
g++ -std=c++11 -Wall -Wextra -g cpp/line.cc $flags "-Wl,-rpath,$lib" -o line
[ "$(./line)" = learned ] || { echo "docs/cpp_cmake.md: the program says: $(./line)"; exit 1; }
if command -v cmake >/dev/null; then
    cmake -S cpp -B cpp/build >"$work/log" && cmake --build cpp/build >>"$work/log" || { cat "$work/log"; exit 1; }
    [ "$(cpp/build/line)" = learned ] || { echo "docs/cpp_cmake.md: CMake's program says: $(cpp/build/line)"; exit 1; }
else
    echo "no cmake: CMakeLists.txt of docs/cpp_cmake.md is not tried"
fi
# The same with the build in place, without installing and without other flags. shellcheck disable=SC2046
g++ -Wall -Wextra -g cpp/line.cc $(PKG_CONFIG_PATH=$build/meson-uninstalled pkg-config --cflags --libs tern) -o in_place
[ "$(ldd ./in_place | sed -n 's/.*libtern.so.* => \([^ ]*\) .*/\1/p')" = "$build/libtern.so.${version%.*}" ] || { ldd ./in_place; exit 1; }
[ "$(./in_place)" = learned ] || { echo "the build where it is: $(./in_place)"; exit 1; }

printf '#include <tern/tern.h>\n#include <cstdio>\nint main() { std::puts(tn_build_info()); }\n' >cxx.cc
# shellcheck disable=SC2086  # splitting is intended
g++ -std=c++17 -Wall -Wextra cxx.cc $flags "-Wl,-rpath,$lib" -o cxx
./cxx
# The loader initialises libtern_wait before libgomp: idle threads soon sleep, and the program's environment is unchanged.
waits=$(env -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY OMP_DISPLAY_ENV=verbose ./cxx 2>&1 | sed -n "s/.*GOMP_SPINCOUNT = '\(.*\)'/\1/p")
case "$(ldd "$lib/libtern.so")" in *libgomp*) [ "$waits" = 10000 ] || { echo "idle threads spin $waits turns"; exit 1; } ;; esac

example=$(find "$root/examples" -name '01*.c' | head -n 1)
if [ -n "$example" ]; then
    # shellcheck disable=SC2086
    gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -g "$example" $flags -lm "-Wl,-rpath,$lib" -o example
    ./example >example.out || { cat example.out; exit 1; }
    echo "$(basename "$example") runs outside the tree, $(wc -l <example.out) lines"
fi

# The line of docs/gpt2.md that builds 11_gpt2.
line=$(sed -n 's/^\(gcc .*11_gpt2\.c.*\)/\1/p' "$root/docs/gpt2.md")
LD_RUN_PATH=$lib bash -ec "${line:?docs/gpt2.md has no such line}"
./11_gpt2 --help | grep -q -e "--init=DIR" || { echo "11_gpt2 as docs/gpt2.md builds it says: $(./11_gpt2 --help)"; exit 1; }

# The build that checks, next to the other: only its libraries, with which an existing program runs. The program, which uses a dead
# tensor, and its output are those of docs/debug_build.md.
if [ $# -gt 1 ]; then
    page=$root/docs/debug_build.md
    sed -n '/^```c$/,/^```$/p' "$page" | sed '/^```/d' >dead.c
    # shellcheck disable=SC2086
    gcc -std=gnu11 -Wall -Wextra -g dead.c $flags "-Wl,-rpath,$lib" -o dead
    before=$(find "$work/install" -type f | wc -l)
    DESTDIR="$work/install" meson install -C "$checked" --no-rebuild >"$work/log" || { cat "$work/log"; exit 1; }
    debug=$(realpath "$(pkg-config --variable=debugdir tern)") # the name has a ..
    [ -e "$debug/libtern.so.${version%.*}" ] || { echo "no libtern.so.${version%.*} in $debug"; exit 1; }
    others=$(find "$work/install" -type f -not -path "$debug/*" | wc -l)
    [ "$others" = "$before" ] || { echo "the debug build installed $((others - before)) files elsewhere than in $debug"; exit 1; }
    for path in "$lib" "$debug"; do
        ! told=$(LD_LIBRARY_PATH=$path ./dead 2>&1) || { echo "the library in $path has no objection: $told"; exit 1; }
        [ "$told" = "$(sed -n 's/^    \(dead.c:.*\)/\1/p' "$page")" ] || { echo "docs/debug_build.md: the program says: $told"; exit 1; }
    done
    echo "a dead tensor is named, with the debug build in $(basename "$debug") too"
fi

# A program that only generates, linked statically, alone in an empty folder with a model.
[ -e "$lib/libtern.a" ] || { echo "no libtern.a in $lib (-Ddefault_library=both)"; exit 1; }
# shellcheck disable=SC2086
gcc -std=c11 -O2 -Wall -Wextra -static "$root/examples/13_generate.c" $(pkg-config --static --cflags --libs tern) -o generate 2>warnings ||
    { cat warnings; exit 1; }
# The linker may only warn about libgomp's own loader of accelerator plugins.
others=$(grep -v -e "libgomp.a(target.o)" -e "warning: Using 'dlopen' in statically linked" warnings || true)
[ -z "$others" ] || { cat warnings; exit 1; }
mkdir alone && strip -o alone/generate generate
(cd alone && "$build/tests/speaker" model "the quick brown fox")
for dtype in "" bf16 int8; do
    # shellcheck disable=SC2086
    said=$(cd alone && env -i ./generate model th $dtype)
    [ "$said" = "e quick brown fox" ] || { echo "the static program says: $said ($dtype)"; exit 1; }
done
if [ "$(id -u)" = 0 ]; then # nothing else is there
    said=$(chroot alone /generate model th)
    [ "$said" = "e quick brown fox" ] || { echo "in an empty root the static program says: $said"; exit 1; }
fi
echo "a static program that generates has $(stat -c %s alone/generate) bytes"

# What the library exports: only tn_ names.
others=$(nm -D --defined-only "$lib/libtern.so" | awk '$3 !~ /^tn_/ && $2 != "A" {print $3}')
[ -z "$others" ] || { echo "exported without the prefix tn_: $others"; exit 1; }

# The command finds the library next to itself.
tern=$(find "$work/install" -name tern -path '*/bin/*')
[ "$("$tern" --version)" = "tern $version" ] || { echo "tern --version says $("$tern" --version)"; exit 1; }
[ "$("$tern" run -n 2 sh -c 'echo $((RANK + WORLD_SIZE))' | sort)" = "$(printf '[0] 2\n[1] 3')" ] || { echo "tern run fails"; exit 1; }
echo "installed tern $version"
