#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Ask the target kernel's headers what they have.
#
#	probe.sh KDIR OUTPUT [make arguments]
#
# Each probes/NAME.c is compiled by the target's own kbuild.  It compiles: the
# feature is there.  It fails with nothing but errors that match the pattern in
# its line "// absent:": the feature is not there.  It fails otherwise: so do
# we, with the log, because an answer got by accident would misbuild silently.
# The answers become OUTPUT, a header of AIRTCP_HAVE_NAME 0 or 1, and its log
# stays beside it as probes.log.

set -eu

kdir=$1
out=$2
shift 2

here=$(cd "$(dirname "$0")/.." && pwd)
dir=$(dirname "$out")
work=$dir/probe
log=$dir/probes.log
# Errors are recognised by their text, which must not be translated.
export LC_ALL=C LANG=C

die() {
	echo "airtcp: $*" >&2
	exit 1
}

[ -n "$(ls "$here"/probes/*.c 2>/dev/null)" ] || die "no probes in $here/probes"
rm -rf "$work"
mkdir -p "$work"
work=$(cd "$work" && pwd)
: > "$log"
tmp=$out.tmp
{
	echo "/* SPDX-License-Identifier: GPL-2.0 */"
	echo "/* Made by scripts/probe.sh from the target's headers. */"
	echo "#ifndef AIRTCP_PROBES_H"
	echo "#define AIRTCP_PROBES_H"
} > "$tmp"

# All probes go through one kbuild run; -k so that one failure does not hide
# the others.  Its exit code says nothing that the objects do not say better.
cp "$here"/probes/*.c "$work"/
for c in "$work"/*.c; do
	n=$(basename "$c" .c)
	echo "obj-m += $n.o"
done > "$work/Kbuild"
for c in "$work"/*.c; do
	n=$(basename "$c" .c)
	set +e
	make -C "$kdir" M="$work" "$@" "$n.o" > "$work/$n.log" 2>&1
	set -e
	{
		echo "== $n"
		cat "$work/$n.log"
	} >> "$log"
done

[ -f "$work/control.o" ] || {
	cat "$work/control.log" >&2
	die "the control probe does not compile against $kdir (see above)"
}

for c in "$work"/*.c; do
	n=$(basename "$c" .c)
	[ "$n" != control ] || continue
	name=AIRTCP_HAVE_$(echo "$n" | tr '[:lower:]' '[:upper:]')
	if [ -f "$work/$n.o" ]; then
		echo "#define $name 1"
		continue
	fi
	absent=$(sed -n 's,^// absent: ,,p' "$c")
	[ -n "$absent" ] || die "probe $n has no line '// absent:'"
	errors=$(grep -E '(^|[^-])error: ' "$work/$n.log" || true)
	if [ -z "$errors" ] || echo "$errors" | grep -qvE "$absent"; then
		cat "$work/$n.log" >&2
		die "probe $n failed for an unexpected reason (see above)"
	fi
	echo "#define $name 0"
done >> "$tmp"
echo "#endif" >> "$tmp"

# An unchanged answer keeps its time stamp, so nothing is rebuilt for it.
if cmp -s "$tmp" "$out"; then
	rm -f "$tmp"
else
	mv "$tmp" "$out"
fi
rm -rf "$work"
