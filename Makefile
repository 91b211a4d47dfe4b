# The one door of the project. `make help` says what there is.

CACHE := $(or $(AIRTCP_CACHE),.airtcp)
AIRLAB := $(CACHE)/venv/bin/airlab
PYTHON := $(CACHE)/venv/bin/python
JOBS ?= $(shell nproc)
OUT ?= results

.PHONY: help setup modules demo check check-quick figures lint shell lock clean distclean

help: ## say what the targets do
	@printf 'airtcp: congestion control for links that lose, stall and move\n\n'
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | \
		awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'
	@printf '\nAfter `make setup` the laboratory is `$(AIRLAB)`; try `$(AIRLAB) --help`.\n'

setup: ## install and build all that the other targets need (they call it themselves)
	@testbed/setup.sh

modules: setup ## build the kernel modules for the lab kernel
	@$(AIRLAB) setup --only modules

demo: setup ## TCP-J beside its rivals on a lossy wireless path: table, plots, page
	@$(AIRLAB) run demo --jobs $(JOBS) --out $(OUT)/demo

check: setup ## all tests, as CI runs them
	@$(PYTHON) -m ruff check -q testbed selftests
	@$(PYTHON) -m ruff format -q --check testbed selftests
	@$(PYTHON) -m mypy testbed/airlab
	@$(PYTHON) -m pytest -q -n $(JOBS)

check-quick: setup ## the tests that need no guest
	@$(PYTHON) -m pytest -q -n $(JOBS) -m 'not guest'

figures: setup ## every figure of the papers again (hours)
	@for f in testbed/figures/*.toml; do \
		$(AIRLAB) verify "$$f" --jobs $(JOBS) --out $(OUT)/$$(basename "$$f" .toml) || exit 1; \
	done

lint: setup ## style and types only
	@$(PYTHON) -m ruff check testbed selftests
	@$(PYTHON) -m ruff format --check testbed selftests
	@$(PYTHON) -m mypy testbed/airlab

shell: setup ## a guest with the modules loaded, on this terminal
	@$(AIRLAB) shell

lock: setup ## renew requirements.txt from what is installed
	@{ sed -n 1p requirements.txt; $(PYTHON) -m pip freeze --all --exclude pip --exclude-editable; } \
		>requirements.new && mv requirements.new requirements.txt

clean: ## remove what was built (keeps the fetched kernel and Debian root)
	rm -rf $(CACHE)/images $(CACHE)/guest-tools $(CACHE)/kernels/*/built

distclean: ## remove everything that was fetched or built (asks for root if root made it)
	if [ -w $(CACHE)/roots ]; then rm -rf $(CACHE); else sudo rm -rf $(CACHE); fi
