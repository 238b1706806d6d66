#!/usr/bin/env bash
# The Debian packages: built from what is committed, then tried in a bare Debian 12 without a compiler, which debootstrap makes
# (as root, with a network). They are left in build/package. usage: tests/test_package.sh
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/tests/support/bare.sh"
work=$root/build/package
version=$(sed -n '1s/.*(\(.*\)).*/\1/p' "$root/debian/changelog")
rm -rf "$work"
mkdir -p "$work/tern-$version"
git -C "$root" archive HEAD | tar -x -C "$work/tern-$version"
echo "building in build/package (log: build/package/log)"
(cd "$work/tern-$version" && dpkg-buildpackage -us -uc -b) >"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
ls "$work"/*.deb

if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null; then
    echo "skipped: the packages were not tried, which takes root and debootstrap"
    exit 0
fi
bare=$(mktemp -d)
trap 'umount -l "$bare/proc" 2>/dev/null || true; rm -rf --one-file-system "$bare"' EXIT
make_bare bookworm "$bare"
cp "$work"/{tern,libtern0.1}_"$version"_*.deb "$bare/"
cp "$root/README.md" "$bare/text.txt"
mount -t proc proc "$bare/proc"
chroot "$bare" bash -euo pipefail <<'END'
export DEBIAN_FRONTEND=noninteractive TERN_TIMEOUT=60
apt-get install -y -q --no-install-recommends ./tern_*.deb ./libtern0.1_*.deb >/install.log 2>&1 || { tail /install.log; exit 1; }
if command -v gcc cc ld; then echo "this Debian has a compiler"; exit 1; fi
cd /root
tern --version
tern tokenizer /text.txt --vocab 300 --out gpt
tern tokens /text.txt --tokenizer gpt --val 0.1 --out tokens
tern run -n 2 tern train --data 'tokens/train_*.bin' --val 'tokens/val_*.bin' --model tiny --context 32 --steps 20 --val-every 10 --out gpt
tern train --again gpt/run.json --out again
tern eval --model gpt --data 'tokens/val_*.bin'
tern generate --model gpt --prompt 'Tern' --tokens 8 --seed 1
tern convert gpt small --dtype bf16
tern eval --model small --data 'tokens/val_*.bin'
. /usr/share/bash-completion/completions/tern
COMP_WORDS=(tern train --res) COMP_CWORD=2
_tern_complete tern
[ "${COMPREPLY[*]}" = "--resume --resume-anyway" ] || { echo "completion: ${COMPREPLY[*]}"; exit 1; }
for verb in tokenizer tokens train run eval generate convert plan; do
    zcat "/usr/share/man/man1/tern-$verb.1.gz" | grep -q -e '-help' || { echo "no page of tern $verb"; exit 1; }
done
END
echo "the packages work in a bare Debian 12"
