#!/bin/sh
# Last: away with it, in use as it is.
set -eu
. ./facts.sh

network
ip -N route show table all >/tmp/routes
try route airtcp route set 198.51.100.0/24 j
fact purge_loaded "$(loaded)"
try purge dpkg --purge airtcp-dkms airtcp-tools
fact purged_loaded "$(loaded)"
fact available "$(cat /proc/sys/net/ipv4/tcp_available_congestion_control)"
fact default "$(cat "$default")"
ip -N route show table all >/tmp/routesb
try routes_equal diff /tmp/routes /tmp/routesb
try packages sh -c 'dpkg-query -W | grep airtcp'
