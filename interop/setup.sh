#!/usr/bin/env bash
# Installs what the interop tests need on Debian or Ubuntu (amd64): QEMU, the RDMA user space that the guest takes from the
# host's root over 9p, and a 6.1 kernel. The kernel package is unpacked into a cache, not installed: its postinst would
# build an initramfs and touch the boot loader. Quick when everything is there.
set -euo pipefail

die() { echo "interop/setup.sh: $*" >&2; exit 1; }

[ "$(uname -s)" = Linux ] || die "the interop tests need Linux (QEMU with a tap device in a network namespace), this is $(uname -s)"
[ "$(uname -m)" = x86_64 ] || die "the interop tests boot an amd64 kernel, this machine is $(uname -m)"
[ "$(id -u)" = 0 ] || die "needs root: network namespaces, tap devices, packages"
[ -c /dev/net/tun ] || die "/dev/net/tun is missing (modprobe tun; in a container: --device /dev/net/tun --cap-add NET_ADMIN)"

cache="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/verbena-interop"
mkdir -p "$cache"
exec 9>"$cache/lock"
flock -w 900 9 || die "another setup has held $cache/lock for 15 minutes"

export DEBIAN_FRONTEND=noninteractive
updated=
apt() {
	command -v apt-get >/dev/null || die "apt-get is missing: install by hand QEMU, rdma-core, perftest, pyverbs and a 6.1 kernel (see this script)"
	if [ -z "$updated" ]; then
		apt-get -o DPkg::Lock::Timeout=300 -q update >"$cache/apt.log" 2>&1 || { tail -20 "$cache/apt.log" >&2; die "apt-get update failed"; }
		updated=1
	fi
	apt-get -o DPkg::Lock::Timeout=300 -q "$@" >>"$cache/apt.log" 2>&1 || { tail -20 "$cache/apt.log" >&2; die "apt-get $* failed"; }
}

packages=(qemu-system-x86 iproute2 util-linux kmod rdma-core ibverbs-utils ibverbs-providers rdmacm-utils perftest
	gcc libc6-dev libibverbs-dev librdmacm-dev
	python3 python3-pyverbs tcpdump tshark)
missing=()
for p in "${packages[@]}"; do
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)" = installed ] || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
	echo "installing ${missing[*]}"
	apt install -y --no-install-recommends "${missing[@]}"
fi

# The newest 6.1 kernel of the distribution: <cache>/kernel-<release>/{vmlinuz,modules/}.
if ! ls "$cache"/kernel-*/complete >/dev/null 2>&1; then
	[ -n "$updated" ] || apt install -y --no-install-recommends dpkg
	name=$(apt-cache search --names-only '^linux-image-6\.1\.[0-9]+-[0-9]+-amd64$' | awk '{print $1}' | sort -V | tail -1)
	[ -n "$name" ] || die "no package linux-image-6.1.*-amd64 in the package lists (Debian 12 has it)"
	release=${name#linux-image-}
	echo "fetching $name"
	work=$(mktemp -d "$cache/unpack.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	(cd "$work" && apt download "$name")
	deb=("$work"/*.deb)
	m="./lib/modules/$release/kernel"
	dpkg-deb --fsys-tarfile "${deb[0]}" | tar x -C "$work" --wildcards "./boot/vmlinuz-$release" "$m/crypto" "$m/lib" \
		"$m/arch/x86/crypto" "$m/net/9p" "$m/net/ipv4" "$m/net/ipv6" "$m/net/core" "$m/fs/9p" "$m/fs/netfs" "$m/fs/fscache" "$m/fs/configfs" \
		"$m/drivers/infiniband/core" "$m/drivers/infiniband/sw" "$m/drivers/infiniband/ulp" "$m/drivers/net/*virtio*" "$m/drivers/net/net_failover.ko" \
		"$m/drivers/virtio" "$m/drivers/char/virtio_console.ko" "$m/drivers/nvme" "$m/drivers/block/null_blk" ||
		die "cannot unpack ${deb[0]}"
	dest="$cache/kernel-$release"
	rm -rf "$dest"
	mkdir "$dest"
	mv "$work/boot/vmlinuz-$release" "$dest/vmlinuz"
	mv "$work/lib/modules/$release/kernel" "$dest/modules"
	dpkg-deb -f "${deb[0]}" Version >"$dest/complete"
fi
echo "interop: $(qemu-system-x86_64 --version | head -1); kernel $(for k in "$cache"/kernel-*/complete; do d=${k%/complete}; echo "${d##*/kernel-} ($(cat "$k"))"; done | sort -V | tail -1)"
