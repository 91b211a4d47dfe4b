#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Make a second build directory whose headers are as in a tree that Debian does
# not package.
#
#	other-headers.sh bbr3|clang RELEASE NAME
#
# Copies the Debian headers of RELEASE to /usr/src/NAME and /usr/src/NAME-common
# (hard links: it takes a second), changes the copy and prints the build
# directory.  To be run inside the Debian root.
#
# bbr3	puts tso_segs(sk, mss_now) in the place of min_tso_segs(sk), as XanMod,
#	CachyOS and others do.  No other difference of those trees concerns a
#	congestion control that is built outside of them.
# clang	answers the configuration's questions about the compiler as clang would:
#	with Debian's own answers the build gives clang options of gcc.

set -eu

kind=$1
release=$2
kdir=/usr/src/$3
from=/usr/src/linux-headers-$release

die() {
	echo "other-headers: $*" >&2
	exit 1
}

# in_copy FILE SED-ARGUMENTS...: sed -i makes a new file, so the original stays.
in_copy() {
	file=$1
	shift
	sed -i "$@" "$file"
	! cmp -s "$file" "$(echo "$file" | sed "s,^$kdir-common/,$common/,; s,^$kdir/,$from/,")" ||
		die "nothing to change in $file"
}

bbr3() {
	in_copy "$kdir-common/include/net/tcp.h" \
		's/u32 (\*min_tso_segs)(struct sock \*sk);/u32 (*tso_segs)(struct sock *sk, unsigned int mss_now);/'
}

clang_answers() {
	version=$(clang -dumpversion | awk -F. '{ print $1 * 10000 + $2 * 100 + $3 }')
	in_copy "$kdir/include/config/auto.conf" \
		-e 's/^CONFIG_CC_IS_GCC=/CONFIG_CC_IS_CLANG=/' \
		-e 's/^CONFIG_LD_IS_BFD=/CONFIG_LD_IS_LLD=/' \
		-e 's/^CONFIG_GCC_VERSION=.*/CONFIG_GCC_VERSION=0/' \
		-e "s/^CONFIG_CLANG_VERSION=.*/CONFIG_CLANG_VERSION=$version/" \
		-e 's/^CONFIG_FTRACE_MCOUNT_USE_CC=/CONFIG_FTRACE_MCOUNT_USE_OBJTOOL=/' \
		-e '/^CONFIG_CC_IMPLICIT_FALLTHROUGH=/s/=5//' \
		-e '/^CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=/d' \
		-e '/^CONFIG_CC_HAS_NAMED_AS=/d' -e '/^CONFIG_USE_X86_SEG_SUPPORT=/d'
	in_copy "$kdir/include/generated/autoconf.h" \
		-e 's/ CONFIG_CC_IS_GCC / CONFIG_CC_IS_CLANG /' \
		-e 's/ CONFIG_LD_IS_BFD / CONFIG_LD_IS_LLD /' \
		-e 's/ CONFIG_GCC_VERSION .*/ CONFIG_GCC_VERSION 0/' \
		-e "s/ CONFIG_CLANG_VERSION .*/ CONFIG_CLANG_VERSION $version/" \
		-e 's/ CONFIG_FTRACE_MCOUNT_USE_CC / CONFIG_FTRACE_MCOUNT_USE_OBJTOOL /' \
		-e '/ CONFIG_CC_IMPLICIT_FALLTHROUGH /s/=5//' \
		-e '/ CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT /d' \
		-e '/ CONFIG_CC_HAS_NAMED_AS /d' -e '/ CONFIG_USE_X86_SEG_SUPPORT /d'
}

[ -f "$from/Makefile" ] || die "no headers of $release at $from"
common=$(sed -n 's,^include \(.*\)/Makefile$,\1,p' "$from/Makefile")
[ -d "$common" ] || die "$from/Makefile does not include Debian's common headers"
rm -rf "$kdir" "$kdir-common"
cp -al "$from" "$kdir"
cp -al "$common" "$kdir-common"
in_copy "$kdir/Makefile" -e "s,$from\$,$kdir," -e "s,$common/,$kdir-common/,"
case $kind in
bbr3) bbr3 ;;
clang) clang_answers ;;
*) die "no headers of kind '$kind' (bbr3, clang)" ;;
esac
echo "$kdir"
