# shellcheck shell=sh
# Sourced by the scripts here: what a test judges goes as lines into out/facts.

# fact NAME VALUE...
fact() { echo "$*" | tee -a out/facts; }

# try NAME COMMAND...: the fact is the exit status and what the command said, on one line.
try() {
	name=$1
	shift
	if said=$("$@" 2>&1); then status=0; else status=$?; fi
	fact "$name" "$status" "$(echo "$said" | tr '\n' ' ')"
}

loaded() { if [ -d /sys/module/tcp_j ]; then echo yes; else echo no; fi; }

# shellcheck disable=SC2034 # for the scripts
default=/proc/sys/net/ipv4/tcp_congestion_control

# set_default NAME, in the words of sysctl(8)
set_default() { /run/machine/busybox sysctl -w net.ipv4.tcp_congestion_control="$1"; }

# network: hosts to send to, without anybody who answers.
network() {
	ip link add d0 type veth peer name d1
	# Link-local addresses would come later, by themselves, and with them routes.
	ip link set d0 addrgenmode none
	ip link set d1 addrgenmode none
	ip link set d0 up
	ip link set d1 up
	ip address add 192.0.2.1/24 dev d0
	ip address add 2001:db8::1/64 dev d0 nodad
	ip route add default via 192.0.2.2 mtu 1400
	ip -6 route add default via 2001:db8::2 metric 512
}
