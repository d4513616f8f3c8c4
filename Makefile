# make demo | test | check | bench: each sets up what it needs first, and says so. A second run is fast.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := pyproject.toml constraints.txt protos/generate.py $(shell find protos -name '*.proto')

# What the demo runs on, and what the tests need besides. (The guest tests install QEMU and a kernel themselves.)
DEMO_PACKAGES := containerd runc busybox-static
TEST_PACKAGES := $(DEMO_PACKAGES) containernetworking-plugins fio iproute2 systemd

# Tests write thousands of small files, such as whole sysfs trees: in memory where there is a place for it.
IN_MEMORY := $(if $(wildcard /dev/shm/.),PYTEST_DEBUG_TEMPROOT=/dev/shm)

.PHONY: demo test check bench clean

demo: $(STAMP)
	@$(call packages,$(DEMO_PACKAGES))
	@$(BIN)/qrm demo

test: $(STAMP)
	@$(call packages,$(TEST_PACKAGES))
	@echo "== tests"
	@$(IN_MEMORY) $(BIN)/python -m pytest

check: $(STAMP)
	@echo "== ruff"
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@echo "== mypy --strict"
	@$(BIN)/mypy
	@echo "== import-linter"
	@$(BIN)/lint-imports --no-logo

bench: $(STAMP)
	@echo "== benchmarks"
	@$(BIN)/python -m tests.bench

clean:
	rm -rf $(VENV) qrm/wire build dist

$(STAMP): $(SOURCES)
	@echo "== setting up $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(call packages,python3-venv); }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt editables grpcio-tools hatchling
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

# Installs what is missing of the Debian packages $(1); without root, says what is missing and goes on without.
define packages
missing=""; \
for package in $(1); do \
  dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$package"; \
done; \
if [ -z "$$missing" ]; then :; \
elif [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then echo "== not root or not Debian, going on without:$$missing"; \
else echo "== installing$$missing"; \
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing; } >/dev/null; fi
endef
