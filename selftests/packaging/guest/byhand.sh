#!/bin/sh
# From a checkout, without packages: make install, make dkms, and both away again.
set -eu
. ./facts.sh

mkdir /tmp/checkout
tar -x -C /tmp/checkout -f source.tar
cd /tmp/checkout
by_hand() { make -s -f packaging/install.mk "$@" >/tmp/log 2>&1 || { cat /tmp/log; return 1; }; }

try_here() {
	cd /run/machine
	try "$@"
	cd /tmp/checkout
}

by_hand install
try_here install_file modinfo -F filename tcp_j
try_here install_load set_default j
try_here install_tool airtcp --version
set_default cubic
rmmod tcp_j
by_hand uninstall
try_here uninstalled modinfo tcp_j

by_hand dkms
try_here dkms_status dkms status airtcp
try_here dkms_load modprobe tcp_j
rmmod tcp_j
by_hand dkms
try_here dkms_again dkms status airtcp
by_hand dkms-remove
try_here dkms_removed modinfo tcp_j
