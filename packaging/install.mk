# SPDX-License-Identifier: GPL-2.0
#
# Putting airtcp onto a host, and taking it away again; the top Makefile and debian/rules come here.
#
#   KVER     kernel release the modules are for (the running one)
#   KDIR     its build directory
#   PREFIX   where the command airtcp goes (/usr/local)
#   DESTDIR  put before every path, for packagers; then neither depmod nor dkms is called

ifdef KDIR
KVER ?= $(shell cat $(KDIR)/include/config/kernel.release)
else
KVER ?= $(shell uname -r)
KDIR := /lib/modules/$(KVER)/build
endif
PREFIX ?= /usr/local
VERSION := $(shell cat modules/VERSION)

NAMES := $(shell sed -n 's,^obj-m += \([a-z0-9_]*\)/$$,\1,p' modules/Kbuild)
UPDATES := $(DESTDIR)/lib/modules/$(KVER)/updates/airtcp
SOURCE := $(DESTDIR)/usr/src/airtcp-$(VERSION)
SHARE := $(DESTDIR)$(PREFIX)/share

.PHONY: install uninstall install-modules install-tools install-source dkms dkms-remove deb

install: install-modules install-tools

install-modules:
	$(MAKE) -C modules KDIR=$(KDIR)
	install -d $(UPDATES)
	for name in $(NAMES); do install -m 644 modules/$$name/$$name.ko $(UPDATES)/ || exit 1; done
	$(if $(DESTDIR),,depmod $(KVER))

install-tools:
	install -d $(DESTDIR)$(PREFIX)/sbin $(SHARE)/airtcp/airtcp_tools $(SHARE)/man/man8 \
		$(SHARE)/doc/airtcp-tools/examples
	install -m 755 tools/airtcp/airtcp $(DESTDIR)$(PREFIX)/sbin/airtcp
	install -m 644 tools/airtcp/airtcp_tools/*.py modules/VERSION $(SHARE)/airtcp/airtcp_tools/
	sed 's/@VERSION@/$(VERSION)/' tools/airtcp/airtcp.8 >$(SHARE)/man/man8/airtcp.8
	chmod 644 $(SHARE)/man/man8/airtcp.8
	install -m 644 packaging/examples/* $(SHARE)/doc/airtcp-tools/examples/
	install -m 644 docs/install.md $(SHARE)/doc/airtcp-tools/

uninstall:
	for name in $(NAMES); do rm -f $(UPDATES)/$$name.ko || exit 1; done
	if [ -d $(UPDATES) ]; then rmdir $(UPDATES); fi
	rmdir $(DESTDIR)/lib/modules/$(KVER)/updates 2>/dev/null || true
	$(if $(DESTDIR),,depmod $(KVER))
	rm -rf $(SHARE)/airtcp $(SHARE)/doc/airtcp-tools
	rm -f $(DESTDIR)$(PREFIX)/sbin/airtcp $(SHARE)/man/man8/airtcp.8
	for dir in $(SHARE)/man/man8 $(SHARE)/doc; do \
		if [ -d $$dir ]; then rmdir --ignore-fail-on-non-empty $$dir; fi; done

# The tree that DKMS builds from: what modules/ needs to build, and dkms.conf.
install-source:
	install -d $(SOURCE)
	cd modules && cp -r --no-preserve=ownership Kbuild KERNELS Makefile VERSION include probes \
		scripts $(NAMES) $(abspath $(SOURCE))/
	cd $(SOURCE) && find . -type f ! -name '*.[ch]' ! -name '*.sh' ! -name Kbuild ! -name KERNELS \
		! -name Makefile ! -name VERSION -delete && find . -name '*.mod.c' -delete
	packaging/dkms-conf.sh >$(SOURCE)/dkms.conf

dkms:
	@command -v dkms >/dev/null || { \
		echo "airtcp: dkms is not installed (Debian: apt install dkms linux-headers-$(KVER))" >&2; \
		exit 1; }
	@if dpkg-query -W -f '$${Status}' airtcp-dkms 2>/dev/null | grep -q 'ok installed'; then \
		echo "airtcp: the package airtcp-dkms is installed; remove it first (apt purge airtcp-dkms)" >&2; \
		exit 1; fi
	if [ -n "$$(dkms status airtcp/$(VERSION))" ]; then dkms remove airtcp/$(VERSION) --all; fi
	rm -rf $(SOURCE)
	$(MAKE) -f packaging/install.mk install-source
	dkms add airtcp/$(VERSION)
	dkms build airtcp/$(VERSION) -k $(KVER)
	dkms install airtcp/$(VERSION) -k $(KVER)

dkms-remove:
	dkms remove airtcp/$(VERSION) --all
	rm -rf $(SOURCE)

# Debian packages for the suite of this machine, into the folder packages/.
deb:
	@command -v dpkg-buildpackage >/dev/null || { \
		echo "airtcp: no dpkg-buildpackage; apt install build-essential, then apt build-dep ." >&2; \
		exit 1; }
	packaging/deb.sh packages
