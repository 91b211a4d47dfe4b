#!/bin/sh
# Everything a fresh Debian machine (bookworm or trixie) needs before it can run the
# laboratory: Debian packages, a Python environment inside the checkout, the build root,
# the lab kernel, the modules and the guest image.  Each step is skipped when it is done.
set -eu

repo=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cache=${AIRTCP_CACHE:-$repo/.airtcp}
venv=$cache/venv

packages="qemu-system-x86 seabios ipxe-qemu mmdebstrap debian-archive-keyring util-linux
	zstd xz-utils lz4 kmod dpkg make gcc libc6-dev python3 python3-venv ca-certificates perl"

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "root is needed once, for: $*; run this as root or install sudo"
	fi
}

missing_packages() {
	for name in $packages; do
		dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' ||
			printf '%s ' "$name"
	done
}

command -v apt-get >/dev/null || die "this is not a Debian system (no apt-get): the lab's
	kernel, build root and guest are made from Debian packages.  Use Debian 12 or 13,
	for example in a container or virtual machine"

missing=$(missing_packages)
if [ -n "$missing" ]; then
	say "installing Debian packages: $missing"
	as_root apt-get -qq update ||
		die "apt-get update failed; check the network and /etc/apt/sources.list*"
	# shellcheck disable=SC2086 # a list of names
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y \
		--no-install-recommends $missing >"${TMPDIR:-/tmp}/airtcp-apt.log" 2>&1 ||
		die "apt-get could not install: $missing
	see ${TMPDIR:-/tmp}/airtcp-apt.log; then run this again"
fi

wanted=$(sha256sum "$repo/requirements.txt" "$repo/pyproject.toml" | sha256sum)
if [ "$(cat "$venv/airtcp.stamp" 2>/dev/null)" != "$wanted" ]; then
	say "making the Python environment in $venv"
	rm -rf "$venv"
	/usr/bin/python3 -m venv "$venv" || die "python3 -m venv failed; is python3-venv installed?"
	"$venv/bin/pip" install -q --disable-pip-version-check -r "$repo/requirements.txt" ||
		die "pip could not install the packages of requirements.txt; check the network and pip's index settings"
	"$venv/bin/pip" install -q --disable-pip-version-check --no-deps --no-build-isolation \
		-e "$repo" || die "pip could not install airlab itself"
	printf '%s\n' "$wanted" >"$venv/airtcp.stamp"
fi

if [ ! "$cache/lockstep.so" -nt "$repo/testbed/lockstep/lockstep.c" ]; then
	cc -O2 -Wall -Wextra -Werror -shared -fPIC -o "$cache/lockstep.so.new" \
		"$repo/testbed/lockstep/lockstep.c" -ldl -pthread ||
		die "the C compiler could not build testbed/lockstep"
	mv "$cache/lockstep.so.new" "$cache/lockstep.so"
fi

exec "$venv/bin/airlab" setup
