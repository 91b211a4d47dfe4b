#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Write dkms.conf to standard output: version from modules/VERSION, range of kernels from
# modules/KERNELS, a module for each folder named in modules/Kbuild.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
modules=$here/../modules

version=$(cat "$modules/VERSION")
min=$(sed -n 's/^min //p' "$modules/KERNELS")
max=$(sed -n 's/^max //p' "$modules/KERNELS")
if [ -z "$min" ] || [ -z "$max" ]; then
	echo "dkms-conf.sh: modules/KERNELS must have lines 'min MAJOR.MINOR' and 'max MAJOR[.MINOR]'" >&2
	exit 1
fi

# A regular expression for the releases from min to max; no series has had more than 30 minors.
pattern=$(echo "$min $max" | awk '{
	split($1, low, "."); split($2, high, ".")
	text = ""
	for (major = low[1]; major <= high[1]; major++) {
		first = major == low[1] ? low[2] + 0 : 0
		last = major == high[1] && high[2] != "" ? high[2] : 30
		minors = ""
		for (minor = first; minor <= last; minor++)
			minors = minors (minors == "" ? "" : "|") minor
		text = text (text == "" ? "" : "|") major "[.](" minors ")"
	}
	print "^(" text ")([^0-9]|$)"
}')
# DKMS counts 7.2 as more than 7: a maximum without a minor gets the greatest one.
case $max in
*.*) ;;
*) max=$max.999 ;;
esac

sed -e "s/@VERSION@/$version/" -e "s/@PATTERN@/$pattern/" -e "s/@MIN@/$min/" -e "s/@MAX@/$max/" \
	"$here/dkms.conf.in"
sed -n 's,^obj-m += \([a-z0-9_]*\)/$,\1,p' "$modules/Kbuild" | awk '{
	printf "BUILT_MODULE_NAME[%d]=\"%s\"\n", NR - 1, $1
	printf "BUILT_MODULE_LOCATION[%d]=\"%s\"\n", NR - 1, $1
	printf "DEST_MODULE_LOCATION[%d]=\"/updates/dkms\"\n", NR - 1
}'
