# codeoid-shim: see README.md. `make help` lists the targets.

CARGO ?= cargo
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)
PROFILE := $(if $(CI),ci,default)
SKIPPED := target/tests-skipped.txt

.DEFAULT_GOAL := help
.PHONY: help run test conformance bench build setup lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: setup ## build, then show on a real repository what a turn may do and what stops it
	@$(MAKE) --no-print-directory build
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

conformance: setup ## the checks of an OCI runtime, this program and runc side by side
	@$(CARGO) build --locked --workspace
	@tests/conformance.sh

bench: setup ## how fast and how small, beside bwrap and other runtimes, as a table
	@$(MAKE) --no-print-directory build
	tests/bench.sh

# Statically linked where that is possible (glibc, and libseccomp's archive, which libseccomp-dev has): the
# program is started for every command, and a tenth of that time went to the dynamic linker and to copying what
# it maps at each fork.
build: ## the release binaries: target/release/codeoid-shim and codeoid-hook
	@host=$$(rustc -vV | sed -n 's/^host: //p'); libdir=$$(pkg-config --variable=libdir libseccomp 2>/dev/null); \
	case "$$host" in \
	*-linux-gnu) if [ -n "$$libdir" ] && [ -e "$$libdir/libseccomp.a" ]; then static=yes; fi ;; \
	esac; \
	if [ -z "$${static:-}" ]; then \
		set -x; $(CARGO) build --release --locked -p codeoid-shim -p codeoid-hooks; exit; \
	fi; \
	set -ex; \
	RUSTFLAGS="$${RUSTFLAGS:-} -C target-feature=+crt-static" \
	LIBSECCOMP_LINK_TYPE=static LIBSECCOMP_LIB_PATH="$$libdir" \
		$(CARGO) build --release --locked --target-dir target --target "$$host" -p codeoid-shim -p codeoid-hooks; \
	mkdir -p target/release; \
	cp -f "target/$$host/release/codeoid-shim" "target/$$host/release/codeoid-hook" target/release/

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
