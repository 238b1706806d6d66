#!/usr/bin/env bash
# The image that Dockerfile describes: built, and its programs run. Where debian:12 cannot be pulled, a base is made by debootstrap
# (as root, with buildah). Without an engine it is skipped. It compiles everything, so only `./run image --test` runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
. tests/support/bare.sh
engine=$(./run image --engine 2>build/engine.txt) || { echo "skipped: no image was built. $(cat build/engine.txt)"; exit 0; }

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
./run image

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
