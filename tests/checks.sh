# shellcheck shell=bash
# The parts of `./run check`, and `./run format`. `./run` sources this file and owns what it calls: configure.

our_files() { find . \( -path ./build -o -name '.?*' \) -prune -o \( -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print | LC_ALL=C sort; }

check_format() {
    our_files | xargs -r clang-format --dry-run -Werror >build/format.log 2>&1 ||
        { sed -n 's/:[0-9]*:[0-9]*: error: .*/: not formatted (.\/run format)/p' build/format.log | uniq; return 1; }
    our_files | xargs -r $python tests/check_width.py
}
check_layers() { $python tests/check_layers.py; }
check_names() { $python tests/check_names.py; }
check_headers() { bash tests/check_headers.sh; }
check_docs() { $python tests/check_size.py && $python tests/check_docs.py && $python tests/check_public.py && $python tests/check_from_pytorch.py && $python docs/reference.py --check; }
# check_analysis [SOURCE...]: of these, or of all. cppcheck's suppressions name places that are sound: it misreads hexadecimal floats, and
# does not see what a call has checked.
check_analysis() {
    local sources=("$@")
    if [ $# -eq 0 ]; then
        mapfile -t sources < <(find "${layers[@]}" -name '*.c')
    fi
    # Only the list of commands is wanted. The emulator's build knows the plugin's C files.
    TARGETS=build.ninja configure tidy -Dbuildtype=debug -Dnv_archs=
    printf '%s\n' "${sources[@]}" | grep -v '^backends/cpu/' | xargs -r -P "$(nproc)" -n 4 clang-tidy -p build/tidy --quiet 2>/dev/null
    printf '%s\n' "${sources[@]}" |
        xargs -r -P "$(nproc)" -n 40 cppcheck --quiet --std=c11 --enable=warning --inline-suppr --error-exitcode=1 \
            -I . -I include -DTN_CPU_LEVEL=3 --suppress=missingIncludeSystem --suppress=incorrectLogicOperator:ops/common.c \
            --suppress=invalidFunctionArg:ops/loss/cross_entropy.c --suppress=nullPointerRedundantCheck:tensor/inspect.c \
            --suppress=uninitvar:backends/cpu/attention_backward.c
}

format() { our_files | xargs -r clang-format -i; }
