#!/bin/sh
# Changes of this boot are dropped: kernels that are not like the one here.
set -eu
. ./facts.sh

headers=$(readlink -f "/lib/modules/$(uname -r)/build")
version=$(cat /usr/share/airtcp/airtcp_tools/VERSION)

# with_config SED-SCRIPT COMMAND...: as if the kernel had been configured otherwise.
with_config() {
	for file in .config include/config/auto.conf; do
		sed "$1" "$headers/$file" >"/tmp/$(basename "$file")"
		mount --bind "/tmp/$(basename "$file")" "$headers/$file"
	done
	shift
	"$@"
	umount "$headers/.config" "$headers/include/config/auto.conf"
}

# Built by clang: DKMS must get LLVM=1 (CC=clang before 3.0.11) through to kbuild; there is no
# clang here, and kbuild must be the one to say so.
# DKMS believes the .comment of vmlinux, which newer headers have for BTF, before the configuration.
if [ -e "$headers/vmlinux" ]; then
	echo '.ident "clang version 19.1"' | as -o /tmp/vmlinux -
	mount --bind /tmp/vmlinux "$headers/vmlinux"
fi
# Debian's headers name the compiler that Debian used.
sed '/^CC = /d' "$headers/.kernelvariables" >/tmp/kernelvariables
mount --bind /tmp/kernelvariables "$headers/.kernelvariables"
with_config 's/CONFIG_CC_IS_GCC=y/CONFIG_CC_IS_CLANG=y/' \
	try clang dkms build "airtcp/$version" --force
umount "$headers/.kernelvariables"
[ ! -e "$headers/vmlinux" ] || umount "$headers/vmlinux"
cp "/var/lib/dkms/airtcp/$version/build/make.log" out/clang.log

# Without what we need.
with_config 's/CONFIG_INET=y/# CONFIG_INET is not set/' \
	try no_inet dkms build "airtcp/$version" --force

# Out of the range: as at the installation of a kernel, which must not fail for it.
for release in 5.10.0-1-amd64 8.0.1-amd64; do
	try "autoinstall_$release" dkms autoinstall -k "$release" --kernelsourcedir "$headers"
	try "build_$release" dkms build "airtcp/$version" -k "$release" --kernelsourcedir "$headers"
done
