# The one door of the project. `make help` says what there is.

CACHE := $(or $(AIRTCP_CACHE),.airtcp)
AIRLAB := $(CACHE)/venv/bin/airlab
PYTHON := $(CACHE)/venv/bin/python
JOBS ?= $(shell nproc)
OUT ?= results
# The tests of the modules; the second list are those whose claims hold in real time, too.
RACE_TESTS := $(wildcard $(patsubst %,selftests/guest/test_%.py,integrity life_cycle privilege))
MODULE_TESTS := $(wildcard selftests/guest/test_tcp_*.py selftests/guest/test_imtcp*.py) $(RACE_TESTS)

.PHONY: help setup modules demo check check-quick check-views check-packaging check-machine \
	matrix check-long check-debug check-grid figures lint ccscope-cost shell install \
	uninstall dkms dkms-remove deb lock clean distclean

help: ## say what the targets do
	@printf 'airtcp: congestion control for links that lose, stall and move\n\n'
	@grep -hE '^[a-z -]+:.*## ' $(MAKEFILE_LIST) | sort | \
		awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'
	@printf '\nAfter `make setup` the laboratory is `$(AIRLAB)`; try `$(AIRLAB) --help`.\n'

setup: ## install and build all that the other targets need (they call it themselves)
	@testbed/setup.sh

modules: setup ## build the kernel modules for the lab kernel
	@$(AIRLAB) setup --only modules

demo: setup ## TCP-J beside its rivals on a lossy wireless path: table, plots, page
	@$(AIRLAB) run demo --jobs $(JOBS) --out $(OUT)/demo

check: setup ## all tests, as CI runs them
	@$(PYTHON) -m ruff check -q testbed selftests tools
	@$(PYTHON) -m ruff format -q --check testbed selftests tools
	@$(PYTHON) -m mypy testbed/airlab tools/ccscope tools/airtcp/airtcp_tools
	@$(PYTHON) -m pytest -q -n $(JOBS)

check-quick: setup ## the tests that need no guest
	@$(PYTHON) -m pytest -q -n $(JOBS) \
		-m 'not guest and not long and not machine and not packaging and not host_engine and not browser'

check-views: setup ## views of ccscope in a real browser and terminal (installs chromium and tmux)
	@selftests/ccscope/need.sh chromium tmux
	@$(PYTHON) -m pytest -q -s -m browser selftests/ccscope

check-packaging: setup ## install, use, upgrade and purge in guests that play real machines (long)
	@$(PYTHON) -m pytest -q -m 'machine or packaging' selftests/machine selftests/packaging

check-machine: setup ## engine host in a guest that plays a real machine, however it ends (long)
	@$(PYTHON) -m pytest -q -m host_engine selftests/machine

matrix: setup ## build for every kernel and boot them; ONLY="6.1,7" does a part (an hour)
	@$(PYTHON) -m airlab.matrix --jobs $(JOBS) $(if $(ONLY),--only "$(ONLY)")

check-long: setup ## tests that are too long for make check: 200 load cycles, 10,000 flows
	@$(PYTHON) -m pytest -q -n $(JOBS) -m long

check-debug: setup ## the module tests in kernels with detectors, which are built first (an hour and more)
	@for k in debug-kasan debug-kcsan; do $(AIRLAB) kernels --fetch $$k >/dev/null || exit 1; done
	@failed=0; \
	$(PYTHON) -m pytest -q -n $(JOBS) selftests/debug || failed=1; \
	$(PYTHON) -m pytest -q -n $(JOBS) --kernel debug-kasan $(MODULE_TESTS) || failed=1; \
	$(PYTHON) -m pytest -q --kernel debug-kcsan $(RACE_TESTS) || failed=1; \
	exit $$failed

check-grid: setup ## a grid of 48 cells, interrupted three times and resumed (half an hour)
	@$(PYTHON) selftests/guest/gridcheck.py --out $(OUT)/check-grid

figures: setup ## every figure of the papers again (hours)
	@differ=; for f in testbed/figures/*.toml; do \
		name=$$(basename "$$f" .toml); code=0; \
		$(AIRLAB) verify "$$f" --jobs $(JOBS) --out "$(OUT)/$$name" || code=$$?; \
		case $$code in 0) ;; 1) differ="$$differ $$name" ;; *) exit $$code ;; esac; \
	done; \
	[ -z "$$differ" ] || { echo "figures: not all claims are reproduced in:$$differ"; exit 1; }

lint: setup ## style and types only
	@$(PYTHON) -m ruff check testbed selftests tools
	@$(PYTHON) -m ruff format --check testbed selftests tools
	@$(PYTHON) -m mypy testbed/airlab tools/ccscope tools/airtcp/airtcp_tools

ccscope-cost: setup ## what ccscope's recording costs a flow at 100 Mbit/s (an hour)
	@$(PYTHON) selftests/ccscope/measure_cost.py 60

shell: setup ## a guest with the modules loaded, on this terminal
	@$(AIRLAB) shell

install uninstall: ## modules for one kernel and the command airtcp, onto this host or away
	@$(MAKE) --no-print-directory -f packaging/install.mk $@

dkms dkms-remove: ## modules for this and every later kernel of this host
	@$(MAKE) --no-print-directory -f packaging/install.mk $@

deb: ## Debian packages airtcp-dkms and airtcp-tools, into packages/
	@$(MAKE) --no-print-directory -f packaging/install.mk $@

lock: setup ## renew requirements.txt from what is installed
	@{ sed -n 1p requirements.txt; $(PYTHON) -m pip freeze --all --exclude pip --exclude-editable; } \
		>requirements.new && mv requirements.new requirements.txt

clean: ## remove what was built (keeps the fetched kernel and Debian root)
	rm -rf $(CACHE)/images $(CACHE)/guest-tools $(CACHE)/kernels/*/built

distclean: ## remove everything that was fetched or built (asks for root if root made it)
	if [ -w $(CACHE)/roots ]; then rm -rf $(CACHE); else sudo rm -rf $(CACHE); fi
