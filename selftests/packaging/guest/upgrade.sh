#!/bin/sh
# Then the next version over the one that is in use.
set -eu
. ./facts.sh

modprobe tcp_j
fact old "$(cat /sys/module/tcp_j/version)"
try upgrade dpkg -i airtcp-dkms_*.deb airtcp-tools_*.deb
try modinfo_version modinfo -F version tcp_j
fact still_loaded "$(cat /sys/module/tcp_j/version)"
try status airtcp status
try unload airtcp unload j
try reload set_default j
fact new "$(cat /sys/module/tcp_j/version)"
try dkms_status dkms status airtcp
try sources sh -c 'ls -d /usr/src/airtcp-*'
try tools_version airtcp --version
set_default cubic
