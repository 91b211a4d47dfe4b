#!/bin/sh
# Third boot: by sysctl, by socket, by route; what holds the module; unloading.
set -eu
. ./facts.sh

fact boot_loaded "$(loaded)"
try sysctl set_default j
fact sysctl_loaded "$(loaded)"
fact sysctl_default "$(cat "$default")"
fact sysctl_new_socket "$(python3 -B ask.py get 127.0.0.1)"
set_default cubic
try unload_1 airtcp unload j
fact unload_1_loaded "$(loaded)"

try socket python3 -B ask.py set j
fact socket_loaded "$(loaded)"
airtcp unload j --wait 10 >/dev/null

network
ip route add 203.0.113.0/24 via 192.0.2.2 proto static
ip -N route show table all >/tmp/routes4
ip -N -6 route show table all >/tmp/routes6
try route_set airtcp route set 198.51.100.0/24 j
fact route_loaded "$(loaded)"
try route_set_static airtcp route set 203.0.113.0/24 j
try route_set_default airtcp route set default j --lock
try route_set_6 airtcp route set -6 default j
try route_set_6_more airtcp route set 2001:db8:1::/48 j --lock
try route_again airtcp route set 198.51.100.0/24 j
try route_none airtcp route set 198.51.100.0/24 j --table 77
try route_unknown airtcp route set 198.51.100.0/24 nosuch
airtcp route list --json >out/routes.json
try route_list airtcp route list
for address in 198.51.100.7 203.0.113.7 8.8.8.8 192.0.2.7 2001:db8:1::7 2001:4860::7 2001:db8::7; do
	fact "by_route_$address" "$(python3 -B ask.py get $address)"
	try "check_$address" airtcp route check $address --expect j
done
try lock python3 -B ask.py locked 8.8.8.8 cubic
try no_lock python3 -B ask.py locked 198.51.100.7 cubic
try route_get ip route get 198.51.100.7
ip route add 198.18.0.0/15 via 192.0.2.2 congctl j proto static
try route_del airtcp route del 203.0.113.0/24
try route_del_again airtcp route del 203.0.113.0/24
try route_flush airtcp route flush
fact foreign "$(ip route show 198.18.0.0/15)"
try unload_route airtcp unload j --wait 30
ip route del 198.18.0.0/15
ip -N route show table all >/tmp/routes4b
ip -N -6 route show table all >/tmp/routes6b
try routes_equal sh -c 'diff /tmp/routes4 /tmp/routes4b && diff /tmp/routes6 /tmp/routes6b'

# Copies of ways that are not one gateway.
ip nexthop add id 7 via 192.0.2.3 dev d0
ip route add 198.51.100.0/25 nhid 7
ip route add 198.51.101.0/24 nexthop via 192.0.2.4 weight 2 nexthop via 192.0.2.5
ip route add unreachable 198.51.102.0/24
try copy_nhid airtcp route set 198.51.100.0/25 j
try copy_multipath airtcp route set 198.51.101.0/24 j
fact multipath "$(ip -o route show 198.51.101.0/24 proto 206)"
try check_nhid airtcp route check 198.51.100.7 --expect j
try check_multipath airtcp route check 198.51.101.7 --expect j
airtcp route flush >/dev/null

# What holds it.
python3 -B hold.py >/tmp/held &
holder=$!
until grep -q ready /tmp/held; do sleep 1; done
# A new namespace inherits the first one's default.
set_default j
ip netns add blue
set_default cubic
ip netns exec blue ip link set lo up
airtcp unload j --dry-run --json >out/holders.json || fact dry_run_status $?
try held airtcp unload j
try held_modprobe modprobe -r tcp_j
try reset airtcp unload j --reset-defaults cubic
fact blue_default "$(ip netns exec blue cat "$default")"
kill $holder
try unload_wait airtcp unload j --wait 90
fact unload_wait_loaded "$(loaded)"
try status airtcp status
airtcp status --json >out/status.json
ip netns del blue

# The other modules come by their names, too.
for cc in imtcp symbiosis cherry imtcp_bg cherry_plus; do
	try "other_$cc" set_default "$cc"
	set_default cubic
	try "other_unload_$cc" airtcp unload "$cc" --wait 30
done
