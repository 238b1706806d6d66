# shellcheck shell=bash
# `./run gpu`, `gpu-count` and `pack-gpu`. `./run` sources this file and owns what it calls: configure, gpu_arch.

# A Python that has PyTorch: TERN_BENCH_PYTHON, else one on PATH, Debian's, or one in /opt; without PyTorch the first on PATH.
torch_python() {
    local candidate
    if [ -n "${TERN_BENCH_PYTHON:-}" ]; then
        echo "$TERN_BENCH_PYTHON"
        return
    fi
    for candidate in $(type -ap python3 python) /usr/bin/python3 /opt/*/bin/python3 /opt/*/.venv/bin/python3; do
        if [ -x "$candidate" ] && "$candidate" -c 'import torch' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    command -v python3
}

# What a machine with CUDA and PyTorch, but without a package manager, needs besides: headers, libraries and pkg-config.
gpu_deps=build/gpu-deps
pack-gpu() {
    local package=(pkg-config pkgconf pkgconf-bin libpkgconf3 libcmocka0 libcmocka-dev zlib1g zlib1g-dev
        libxxhash0 libxxhash-dev libnettle8 nettle-dev libhogweed6 libgmp10 libgmp-dev libpcre2-8-0 libpcre2-dev
        libzstd1 libzstd-dev libdw1 libdw-dev libelf1 libelf-dev)
    rm -rf $gpu_deps
    mkdir -p $gpu_deps/archives/partial
    (cd $gpu_deps/archives && apt-get download -q "${package[@]}") >build/pack.log 2>&1 || { tail build/pack.log; return 1; }
    local file
    for file in $gpu_deps/archives/*.deb; do
        dpkg -x "$file" $gpu_deps
    done
    rm -rf $gpu_deps/archives $gpu_deps/usr/share/{doc,man,locale,info}
    # Links that leave the folder would end on another machine's files.
    find $gpu_deps -type l | while read -r file; do
        [[ "$(readlink "$file")" != /* ]] || ln -sfn "$(realpath -ms --relative-to="$(dirname "$file")" "$gpu_deps$(readlink "$file")")" "$file"
    done
    du -sh $gpu_deps
}

# The environment in which meson and programs find build/gpu-deps, if it is there.
use_gpu_deps() {
    [ -d $gpu_deps ] || return 0
    local root=$PWD/$gpu_deps lib
    lib=$root/usr/lib/x86_64-linux-gnu
    export PKG_CONFIG=$root/usr/bin/pkgconf PKG_CONFIG_SYSROOT_DIR=$root
    export PKG_CONFIG_LIBDIR=$lib/pkgconfig:$root/usr/share/pkgconfig
    export LD_LIBRARY_PATH=$lib:$root/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export CPATH=$root/usr/include:$root/usr/include/x86_64-linux-gnu
    export LIBRARY_PATH=$lib:$root/lib/x86_64-linux-gnu
}

# The toolkit's folders in the layout of pip (site-packages/nvidia/...), as options of meson; nothing where nvcc has its own.
pip_layout() {
    "$python" - <<'END'
import glob, importlib.util, os
spec = importlib.util.find_spec("nvidia")
roots = list(spec.submodule_search_locations) if spec and spec.submodule_search_locations else []
include = sorted(d for r in roots for d in glob.glob(r + "/*/include"))
library = sorted(d for r in roots for d in glob.glob(r + "/*/lib"))
if include:
    print("-Dnv_includedirs=" + ",".join(include), "-Dnv_libdirs=" + ",".join(library))
END
}

gpu() {
    command -v nvidia-smi >/dev/null && nvidia-smi -L || { echo "./run gpu needs a machine with an NVIDIA GPU: nvidia-smi finds none"; return 1; }
    python=$(torch_python)
    use_gpu_deps
    local layout status=0
    read -r -a layout <<<"$(pip_layout)"
    # What the first parts need; tests/gpu.py has the rest compiled before it is run. What does not compile costs its own tests alone.
    TARGETS="-k 0 tools/tern bench/gpt2 libtern_cuda.so" configure gpu -Dbuildtype=release -Dcuda=enabled -Dnv_archs="$(gpu_arch)" \
        -Ddevice_tests=real -Dgloo=auto "${layout[@]}" || status=1
    [ ! -d "${OUT:-}" ] || cp build/gpu.log "$OUT/build.log"
    [ $status -eq 0 ] || [ -f build/gpu/libtern_cuda.so ] || return 1
    local limit=() # TERN_GPU_SECONDS: all of this command, what was built included
    [ -z "${TERN_GPU_SECONDS:-}" ] || limit=(--seconds $((TERN_GPU_SECONDS - SECONDS)))
    "$python" tests/gpu.py "${limit[@]}" build/gpu "$@"
}

# What a step asks of a GPU. Needs the headers of CUDA and cuDNN, no GPU.
gpu-count() {
    TARGETS="libtern_cuda_emulator.so tests/emulator/libfake_cudnn.so tests/count_step" configure test -Dbuildtype=debugoptimized \
        -Ddebug_tensors=enabled -Dcpu_levels="$(cpu_level)" -Dnv_archs="$(gpu_arch)"
    $python tests/cuda/test_counts.py "$@"
}
