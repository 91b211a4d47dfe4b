#!/bin/sh
# A boot with module.sig_enforce=1, as Secure Boot has it, and no key enrolled.
set -eu
. ./facts.sh

try own_signer modinfo -F signer tcp_j
try own modprobe tcp_j
try own_sysctl set_default j
try debian_signer modinfo -F signer tcp_bbr
try debian modprobe tcp_bbr
cp "$(modinfo -n tcp_j)" /tmp/tcp_j.ko.xz
unxz -f /tmp/tcp_j.ko.xz
try strip strip --strip-debug /tmp/tcp_j.ko
try unsigned insmod /tmp/tcp_j.ko
try status airtcp status
