#!/bin/sh
# On the disk with the packages: removed while the module is the default.
set -eu
. ./facts.sh

set_default j
try purge dpkg --purge airtcp-dkms airtcp-tools
fact default "$(cat "$default")"
fact new_socket "$(python3 -B ask.py get 127.0.0.1)"
set_default cubic
try rmmod rmmod tcp_j
fact loaded "$(loaded)"
