#!/bin/sh
# With Secure Boot on: refused, then the request to enrol DKMS's key, for the next boot.
set -eu
. ./facts.sh

mount -t efivarfs efivarfs /sys/firmware/efi/efivars
try sb_state mokutil --sb-state
try own modprobe tcp_j
try debian modprobe tcp_bbr
try status airtcp status
mokutil --generate-hash=airtcp >/tmp/hash
try import mokutil --import /var/lib/dkms/mok.pub --hash-file /tmp/hash
try pending mokutil --list-new
