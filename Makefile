# codeoid-shim: see README.md. `make help` lists the targets.

CARGO ?= cargo
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)
PROFILE := $(if $(CI),ci,default)
SKIPPED := target/tests-skipped.txt

.DEFAULT_GOAL := help
.PHONY: help run test bench build setup lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: setup ## build, then show on a real repository what a turn may do and what stops it
	$(CARGO) build --release --locked -p codeoid-shim -p codeoid-hooks
	tests/demo.sh

test: setup ## all tests, as root also as the user codeoid-test (CI=true: whatever is missing is a failure)
	$(CARGO) build --locked --workspace
	@rm -f $(SKIPPED)
ifeq ($(NEXTEST),yes)
	CODEOID_TESTS_SKIPPED=$(CURDIR)/$(SKIPPED) $(CARGO) nextest run --locked --workspace --profile $(PROFILE)
else
	CODEOID_TESTS_SKIPPED=$(CURDIR)/$(SKIPPED) $(CARGO) test --locked --workspace --lib --bins --tests --no-fail-fast
endif
	@if [ -s $(SKIPPED) ]; then echo "Skipped here (failures where CI is set):"; sort -u $(SKIPPED); fi

bench: setup ## how fast and how small, beside bwrap and other runtimes, as a table
	$(CARGO) build --release --locked -p codeoid-shim -p codeoid-hooks
	tests/bench.sh

build: ## the release binaries: target/release/codeoid-shim and codeoid-hook
	$(CARGO) build --release --locked -p codeoid-shim -p codeoid-hooks

setup: ## install what is missing (Debian, Ubuntu), create the test user
	@tests/setup.sh

lint: ## formatting, clippy, dependency rules, licences
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	tests/dependency-rules.sh
	@if command -v cargo-deny >/dev/null 2>&1; then $(CARGO) deny check bans licenses sources; \
	 else echo "lint: cargo-deny is not installed: licences and sources are not checked"; fi

clean: ## remove what was built
	$(CARGO) clean
