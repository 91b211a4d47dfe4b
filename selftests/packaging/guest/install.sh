#!/bin/sh
# Second boot: the packages are installed, DKMS builds.
set -eu
. ./facts.sh

try install dpkg -i airtcp-dkms_*.deb airtcp-tools_*.deb
try dkms_status dkms status airtcp
try modinfo_version modinfo -F version tcp_j
try modinfo_file modinfo -F filename tcp_j
try modinfo_signer modinfo -F signer tcp_j
try tools_version airtcp --version
# shellcheck disable=SC2016 # dpkg-query's own words
try package_versions dpkg-query -W -f '${Version} ' airtcp-dkms airtcp-tools
try conf_version sh -c 'dkms status airtcp | cut -d/ -f2 | cut -d, -f1'
cp /var/lib/dkms/airtcp/*/*/*/log/make.log out/make.log
fact installed_loaded "$(loaded)"
try status_before airtcp status
