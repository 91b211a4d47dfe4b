#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Build airtcp's Debian packages.
#
#	deb.sh FOLDER [VERSION]
#
# The packages go into FOLDER.  They are built from a copy of what a package needs, since
# dpkg-buildpackage writes beside its tree, and debian/changelog says VERSION in it if given
# (tests of upgrades need a second one).
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
repo=$here/..
[ $# -ge 1 ] || { echo "usage: deb.sh FOLDER [VERSION]" >&2; exit 2; }
mkdir -p "$1"
out=$(CDPATH='' cd -- "$1" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/airtcp"
make -s -C "$repo" -f packaging/install.mk install-source DESTDIR="$work/source"
mkdir "$work/airtcp/modules"
cp -r "$work"/source/usr/src/airtcp-*/. "$work/airtcp/modules/"
rm "$work/airtcp/modules/dkms.conf"
cp -r "$repo/debian" "$repo/packaging" "$repo/LICENSE" "$work/airtcp/"
mkdir -p "$work/airtcp/tools/airtcp/airtcp_tools" "$work/airtcp/docs"
cp "$repo/tools/airtcp/airtcp" "$repo/tools/airtcp/airtcp.8" "$work/airtcp/tools/airtcp/"
cp "$repo"/tools/airtcp/airtcp_tools/*.py "$work/airtcp/tools/airtcp/airtcp_tools/"
cp "$repo/docs/install.md" "$work/airtcp/docs/"
cd "$work/airtcp"
if [ $# -ge 2 ]; then
	echo "$2" >modules/VERSION
	sed -i "1s/(.*)/($2)/" debian/changelog
fi
dpkg-buildpackage -us -uc
cp "$work"/airtcp*.deb "$work"/airtcp*.dsc "$work"/airtcp*.tar.* "$work"/airtcp*.buildinfo \
	"$work"/airtcp*.changes "$out/"
echo "deb.sh: the packages are in $out"
