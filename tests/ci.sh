# shellcheck shell=bash
# What must hold before a change is taken, and in the long form (`full`) before a release. `./run` sources this file and owns what it
# calls: configure, run_tests, the checks.
#
# Before a change is taken every ordinary test runs once, where memory is checked, and the long ones as users build. What depends on
# the change: clang-tidy and cppcheck read the sources that changed; the kernels' own tests, the device's repeats, nvcc and the
# CPU's lower levels run when something changed on which kernels depend.

# The folders whose change asks for the kernels' tests; a change to how things are built or run asks for everything.
kernel_paths='^(backends|ops|tensor|core|autograd|tests/(backends|ops|cuda|emulator|support)|include/tern/(sys/|core|tensor|ops))|^(tests/)?meson|^run$|^tests/ci\.sh$|^\.ci/'

# The emulated GPU is compiled for the address sanitizer, which takes minutes, when device code or what it runs on changed.
device_paths='^meson|^backends/(cuda|[^/]*$)|^tests/(cuda|emulator|backends|meson)|^include/tern/sys/|^tests/ci\.sh$'

# The files that changed since TERN_CI_BASE, or else in the twelve hours of commits before HEAD; without such a commit, all files.
changed_files() {
    local base=${TERN_CI_BASE:-}
    [ -n "$base" ] || base=$(git rev-list -1 --min-age=$(($(git show -s --format=%ct HEAD) - 12 * 3600)) HEAD)
    if [ -n "$base" ]; then git diff --name-only --diff-filter=d "$base"; else git ls-files; fi
}

# Of the sources that changed, and of those that include a header that changed.
changed_analysis() {
    local header patterns=() sources=()
    while read -r header; do
        patterns+=(-e "#include [\"<]${header#include/}[\">]")
    done < <(grep '\.h$' <<<"$changes")
    mapfile -t sources < <({
        grep '\.c$' <<<"$changes"
        [ ${#patterns[@]} -eq 0 ] || git grep -lF "${patterns[@]}" -- '*.c' || true
    } | grep -E "^($(IFS='|'; echo "${layers[*]}"))/" | sort -u)
    echo "${#sources[@]} sources"
    [ ${#sources[@]} -eq 0 ] || check_analysis "${sources[@]}"
}

# The tests that wait: for launchers, for ranks that are killed, for time-outs. They run beside what computes, into a log of their own.
start_long_tests() {
    run_tests ci-release long -t 3 --suite long >build/long-tests.log 2>&1 &
    long_tests=$!
}

# The operations at each lower level of this CPU, and with the twin of its tiles, a log each; the kernels' own tests compare every
# level, and `plain` is what they compare it with.
lower_levels() {
    local levels level
    read -ra levels <<<"$(build/ci-release/tools/tern info | sed -n 's/^kernels .* levels plain//p')"
    [ ${#levels[@]} -gt 0 ] || { echo "tern info names no levels"; return 1; }
    for level in "${levels[@]:0:${#levels[@]}-1}" amx-twin; do
        TERN_CPU=$level TERN_OP_CHECK=brief run_tests ci-release "level-$level" -t 3 --suite ops
    done
}

# The thread sanitizer over everything that has threads of its own, and over data parallelism, which uses them. clang compiles here
# what it is to warn of: the library, these tests, and the tests that changed.
threads() {
    local tests=(core/fork profile/trace distributed/{fork,store,tcp_store,init,group,launch,data,rpc{,_faults,_frames,_grad}} parallel/{ddp_{attach,buckets,errors,steps,unused},fsdp,fsdp_{programs,traps},saver,saver_{errors,folder,fsdp,load}} data/{compose,loader,tokens,tokens_ranks,transforms})
    local targets
    targets=$(printf '%s\n' "${tests[@]}" | sed 's|\(.*\)/|tests/test_\1_|')
    targets+=" $(sed -n 's|^tests/\([a-z]*\)/test_\(.*\)\.c$|tests/test_\1_\2|p' <<<"$changes" | grep -v -e ^tests/test_cuda -e ^tests/test_emulator -e _kernels_)"
    CC=clang CXX=clang++ TARGETS=$(tr '\n' ' ' <<<"$targets") configure ci-threads -Ddebug=true -Doptimization=1 -Db_sanitize=thread -Db_lundef=false \
        -Dexamples=false -Dbench=false -Dcuda=disabled -Dwerror=true -Dcpu_levels="$(cpu_level)"
    TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1 OMP_NUM_THREADS=2 run_tests ci-threads testlog -t 3 "${tests[@]}"
}

fuzz() {
    [[ "${1:-60}" =~ ^[0-9]+$ ]] || refuse fuzz "$1"
    [ $# -lt 2 ] || refuse fuzz "$2"
    CC=clang configure fuzz -Dbuildtype=debugoptimized -Dfuzz=true -Dtests=false -Dcuda=disabled -Db_sanitize=address,undefined -Db_lundef=false
    local source name
    for source in tests/fuzz/*.c; do
        [ -f "$source" ] || { echo "no fuzz targets"; return 1; }
        name=$(basename "$source" .c)
        say "$name"
        mkdir -p "build/fuzz/found/$name" "tests/fuzz/corpus/$name"
        "build/fuzz/tests/$name" -max_total_time="${1:-60}" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
            -artifact_prefix="build/fuzz/found/$name/crash-" "build/fuzz/found/$name" "tests/fuzz/corpus/$name"
    done
}

coverage() {
    configure coverage -Dbuildtype=debug -Db_coverage=true -Dnv_archs=
    find build/coverage -name '*.gcda' -delete # what earlier runs reached
    run_tests coverage testlog
    local folder status=0 lines
    gcovr --root . --exclude tests --exclude bench --exclude examples build/coverage
    say "lines that tests reach; at least 95 % are wanted"
    for folder in ops backends/ref; do
        lines=$(gcovr --root . --filter "$folder/" --fail-under-line 95 --print-summary build/coverage 2>/dev/null) || status=1
        printf '%-14s %s\n' "$folder/" "$(sed -n 's/^lines: //p' <<<"$lines")"
    done
    return $status
}

# What the long form has besides: each ordinary test as users build, every cell of the faults, the peers from PyPI, bare machines.
more() {
    attempt "ordinary, -O3" run_tests ci-release ordinary -t 3 --no-suite long --no-suite kernels --no-suite device
    attempt faults env TERN_TEST_BIN="$PWD/build/ci-release/tests" $python tests/distributed/faults.py
    attempt peers peers
    attempt clang clang_install
    attempt mutants mutate --count 30 --seed "$(date +%Y%j)"
    attempt fuzz fuzz 60
    attempt coverage coverage
    attempt package package
    attempt "bare 12" bare 12
    attempt "bare 13" bare 13
    attempt aarch64 aarch64
    attempt image image --test
}
# Tests beside transformers, tokenizers, ONNX and TensorBoard, in an environment of their own.
peers() {
    [ -x build/peers/bin/python ] || python3 -m venv build/peers
    build/peers/bin/pip install -q torch transformers tokenizers safetensors onnx onnxruntime tensorboard
    local names
    names=$($python tests/tap.py names build/ci-release pypi) || return 1
    mapfile -t names <<<"$names"
    TERN_PYPI_PYTHON=$PWD/build/peers/bin/python run_tests ci-release peers -t 3 "${names[@]}"
}
# The build that checks for dead tensors, installed beside the other; by clang, whose warnings of everything are wanted.
clang_install() {
    CC=clang CXX=clang++ configure ci-clang -Dbuildtype=debug -Dwerror=true -Dnv_archs= -Dcpp_args=-O0 -Dcpu_levels="$(cpu_level)"
    bash tests/test_install.sh build/ci-release build/ci-clang
}

ci() {
    local full=${1:-} changes kernels="" part
    rm -rf build/ci-*
    # Without intercept_tls_get_addr: it guesses where the C library keeps a library's thread-local block, and reads past it. Of freed
    # memory the last 16 MiB are watched, not 256: fresh pages cost tests with many ranks up to a sixth of their time.
    export ASAN_OPTIONS=intercept_tls_get_addr=0:detect_leaks=1:halt_on_error=1:abort_on_error=0:quarantine_size_mb=16 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
    changes=$([ -n "$full" ] && git ls-files || changed_files)
    ! grep -qE "$kernel_paths" <<<"$changes" || kernels=yes
    local archs=${kernels:+80}
    [ -z "$full" ] || archs=80,90,100
    say "$(wc -l <<<"$changes") files changed; kernels' tests: ${kernels:-no}"
    for part in layers names format headers docs; do
        attempt "$part" "check_$part"
    done
    attempt analysis changed_analysis
    # As users build. nvcc compiles for the oldest of the architectures: between them no source differs.
    attempt release configure ci-release -Dbuildtype=release -Dwerror=true -Dnv_archs="$archs" \
        $([ -n "$kernels" ] || echo "-Dcpu_levels=$(cpu_level)")
    start_long_tests
    # -O1 compiles in half of -O2's time. -g1: reports need lines, and -g's variables cost up to half of the time. The address sanitizer
    # sees what null and object-size do; alignment, a tenth of the time, is for the long form. The kernels at lower levels are the same sources.
    local checks="-g1 -fno-sanitize=null,object-size"
    [ -n "$full" ] || checks+=,alignment
    attempt sanitizers configure ci-sanitizers -Dc_args="$checks" -Dcpp_args="$checks" -Doptimization=1 -Ddebug_tensors=enabled -Db_sanitize=address,undefined -Dbench=false \
        -Dcpu_levels="$(cpu_level)" -Dnv_archs= $(grep -qE "$device_paths" <<<"$changes" || echo -Dcuda=disabled)
    TERN_OP_CHECK=brief attempt ordinary run_tests ci-sanitizers testlog -t 3 --no-suite device --no-suite long $([ -n "$kernels" ] || echo --no-suite kernels)
    wait "$long_tests" || failed+=("long tests") # here: an attempt is a subshell, whose child they are not
    attempt "long tests" cat build/long-tests.log
    if [ -n "$kernels" ]; then
        attempt kernels run_tests ci-release testlog -t 3 --suite kernels --suite device
        attempt registers run_tests ci-release registers cuda/registers # of what nvcc compiled
        attempt levels lower_levels
    else
        attempt device run_tests ci-release testlog -t 3 --suite cuda --no-suite device
    fi
    attempt threads threads
    attempt install bash tests/test_install.sh build/ci-release
    [ -z "$full" ] || more
    say "seconds"
    printf '%s%6d s  in all\n' "$seconds" $SECONDS
    $python tests/tap.py count build/ci-*/meson-logs/*.json "${failed[@]/#/stage:}"
}
