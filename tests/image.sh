#!/usr/bin/env bash
# The image that Dockerfile describes. usage: tests/image.sh [--cuda | --test]
# --test: built, and its programs run. Where debian:12 cannot be pulled, a base is made by debootstrap (as root, with buildah).
# Without an engine it is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build

# The program that builds images here; if there is none, why.
image_engine() {
    local engine reasons=()
    for engine in docker podman buildah; do
        if ! command -v "$engine" >/dev/null; then
            reasons+=("$engine is not installed;")
        elif timeout 30 "$engine" info >build/engine.log 2>&1; then
            echo "$engine"
            return
        else
            reasons+=("$engine does not answer ($(tail -n 1 build/engine.log));")
        fi
    done
    echo "./run image needs docker, podman or buildah: ${reasons[*]}" >&2
    return 1
}

# build_image ARGUMENTS: of the engine.
build_image() {
    local verb=build
    [ "$engine" != buildah ] || verb=bud
    echo "building the image tern with $engine (log: build/image.log)"
    "$engine" "$verb" -t tern ${BASE:+--build-arg "BASE=$BASE"} "$@" . >build/image.log 2>&1 || { tail -n 30 build/image.log; return 1; }
}

if [ "${1:-}" != --test ]; then
    engine=$(image_engine)
    build_image ${1:+--build-arg CUDA=13.0}
    exit
fi
. tests/support/bare.sh
engine=$(image_engine 2>build/engine.txt) || { echo "skipped: no image was built. $(cat build/engine.txt)"; exit 0; }

if [ "$engine" = buildah ] && [ -z "${BASE:-}" ] && ! buildah pull -q debian:12 >/dev/null 2>&1; then
    if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null; then
        echo "skipped: debian:12 cannot be pulled, and to make one takes root and debootstrap"
        exit 0
    fi
    echo "debian:12 cannot be pulled: a base is made by debootstrap"
    bare=$(mktemp -d)
    trap 'rm -rf --one-file-system "$bare"' EXIT
    make_bare bookworm "$bare"
    container=$(buildah from scratch)
    buildah add -q "$container" "$bare" / >/dev/null
    buildah commit -q --rm "$container" tern-base >/dev/null
    export BASE=localhost/tern-base
fi
build_image

# inside SCRIPT: as a user would, in a container that is removed again.
inside() {
    if [ "$engine" != buildah ]; then
        "$engine" run --rm -i --entrypoint bash tern -euo pipefail -c "$1"
        return
    fi
    local container status=0
    container=$(buildah from tern)
    buildah run "$container" -- bash -euo pipefail -c "$1" || status=$?
    buildah rm "$container" >/dev/null
    return $status
}
inside '
export TERN_TIMEOUT=60
if command -v gcc cc ld; then echo "the image has a compiler"; exit 1; fi
tern --version
tern info | grep -q "gloo   yes" || { tern info; exit 1; }
cat /usr/share/common-licenses/* >text.txt
tern tokenizer text.txt --vocab 300 --out gpt
tern tokens text.txt --tokenizer gpt --val 0.1 --out tokens
tern run -n 2 tern train --data "tokens/train_*.bin" --model tiny --context 32 --steps 10 --out gpt
tern generate --model gpt --prompt "The" --tokens 4 --seed 1
'
echo "the image works"
