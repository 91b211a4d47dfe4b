#!/bin/sh
# First boot: without the packages.
set -eu
. ./facts.sh

# A key of DKMS's own, as on a host that has built modules before: it is not ours to remove.
# (DKMS before 3.0.11 has no word for that.)
dkms generate_mok >/dev/null 2>&1 || true
network
try absent_sysctl set_default j
try absent_socket python3 -B ask.py set j
try absent_route ip route add 203.0.113.0/24 via 192.0.2.2 congctl j
fact absent_default "$(cat "$default")"
