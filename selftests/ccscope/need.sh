#!/bin/sh
# Installs the Debian packages that are named and not there yet.
set -eu

missing=""
for name in "$@"; do
	dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' ||
		missing="$missing $name"
done
[ -n "$missing" ] || exit 0
echo "check-views: installing$missing"
sudo=""
[ "$(id -u)" -eq 0 ] || sudo=sudo
$sudo apt-get -qq update
# shellcheck disable=SC2086 # a list of names
$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
	$missing fonts-dejavu-core >/dev/null
