#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows that the two commands of the README do all their set-up: makes a bare Debian 12 in DIR, clones this tree's last
# commit into it, runs ./dev test and ./dev demo there, and ./dev test again, which must rebuild nothing.
# Not a part of ctest: it needs root, debootstrap, and minutes.
#
# usage: fresh_root.sh DIR [MIRROR]
set -euo pipefail

root=${1:?usage: fresh_root.sh DIR [MIRROR]}
mirror=${2-}
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[[ ! -e $root ]] || { echo "fresh_root: $root exists" >&2; exit 1; }

debootstrap --variant=minbase bookworm "$root" ${mirror:+"$mirror"}
git clone --quiet "$tree" "$root/hypic"

# This machine's way to its package mirror, proxies included, holds inside too.
apt-config dump | grep '^Acquire::' > "$root/etc/apt/apt.conf.d/00machine"
cp /etc/resolv.conf "$root/etc/resolv.conf"

inside() {
  chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    bash -c 'cd /hypic && exec "$@"' - "$@"
}

mount -t proc proc "$root/proc"
trap 'umount "$root/proc"' EXIT
mount -t devpts devpts "$root/dev/pts" -o newinstance,ptmxmode=0666
trap 'umount "$root/dev/pts" "$root/proc"' EXIT
ln -sf pts/ptmx "$root/dev/ptmx"

inside ./dev test
inside ./dev demo
inside ./dev test | tee "$root/second_run"
grep -q '^ninja: no work to do\.$' "$root/second_run" || { echo 'fresh_root: the second run rebuilt something' >&2; exit 1; }
echo 'fresh_root: both commands passed in a fresh root, and a second run rebuilt nothing'
