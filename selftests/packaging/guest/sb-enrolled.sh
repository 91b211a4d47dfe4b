#!/bin/sh
# With Secure Boot on, after a person has enrolled DKMS's key.
set -eu
. ./facts.sh

mount -t efivarfs efivarfs /sys/firmware/efi/efivars
try sb_state mokutil --sb-state
try enrolled mokutil --test-key /var/lib/dkms/mok.pub
try own set_default j
fact loaded "$(loaded)"
cp "$(modinfo -n tcp_j)" /tmp/tcp_j.ko.xz
set_default cubic
rmmod tcp_j
unxz /tmp/tcp_j.ko.xz
strip --strip-debug /tmp/tcp_j.ko
try unsigned insmod /tmp/tcp_j.ko
try sign "/lib/modules/$(uname -r)/build/scripts/sign-file" sha256 \
	/var/lib/dkms/mok.key /var/lib/dkms/mok.pub /tmp/tcp_j.ko
try signed insmod /tmp/tcp_j.ko
try status airtcp status
airtcp status --json >out/status.json
