#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Refuse a kernel build directory that cannot work, with words.
#
#	check-kernel.sh KDIR

set -eu

kdir=$1
here=$(cd "$(dirname "$0")/.." && pwd)

die() {
	for line in "$@"; do
		echo "airtcp: $line" >&2
	done
	exit 1
}

[ -f "$kdir/Makefile" ] || die \
	"there is no kernel build directory at '$kdir'." \
	"Install the headers of the kernel you build for (Debian: linux-headers-RELEASE)" \
	"or name another one: make KDIR=/lib/modules/RELEASE/build"

release=$(cat "$kdir/include/config/kernel.release" 2>/dev/null) || die \
	"'$kdir' is not configured: it has no include/config/kernel.release." \
	"Run 'make modules_prepare' there, or use a distribution's header package."

min=$(sed -n 's/^min //p' "$here/KERNELS")
max=$(sed -n 's/^max //p' "$here/KERNELS")

# major * 1000 + minor; a bound without a minor means any.
number() {
	echo "$1 $2" | awk '{ split($1, v, /[.+-]/)
		print v[1] * 1000 + (v[2] == "" ? $2 : v[2]) }'
}

have=$(number "$release" 0)
if [ "$have" -lt "$(number "$min" 0)" ] || [ "$have" -gt "$(number "$max" 999)" ]; then
	[ "${AIRTCP_ANY_KERNEL:-0}" != 1 ] || exit 0
	die "kernel $release is outside the range these modules are made for:" \
	    "from $min to $max (file KERNELS).  AIRTCP_ANY_KERNEL=1 tries all the same."
fi
