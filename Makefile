# `make` alone says what there is.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO_TARGET_DIR ?= target
FUZZ_SECONDS ?= 300
SOAK_SECONDS ?= 300
# How the library for programs in C is built.
PROFILE ?= library
# Programs are linked with the first name, and ask at run time for the second: its number goes up when they could not use the new library.
LIBRARY := libropeway.so
SONAME := $(LIBRARY).0
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

# Where rustup puts cargo: a shell opened before the installation does not have it yet.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: help demo test check fuzz soak bench install uninstall clean

help:
	@echo "make demo      build, then redis, iperf3 and a ping-pong over TCP and over Ropeway, in one table"
	@echo "make test      every test there is, against real programs too; ends with one line of totals"
	@echo "make check     quick: format, lints, unit tests, the rules of the house, documentation"
	@echo "make fuzz      the randomized tests and the attackers, with new seeds, for FUZZ_SECONDS (now $(FUZZ_SECONDS)); then libFuzzer"
	@echo "               on the targets of fuzz/ for as long, where cargo-fuzz is installed"
	@echo "make soak      programs on four hosts of a box while links and processes are disturbed, with a new seed, SOAK_SECONDS (now $(SOAK_SECONDS))"
	@echo "               over UDP and as many over raw frames; as root"
	@echo "make bench     Ropeway against TCP, AF_UNIX and the limits of this machine"
	@echo "make install   install under PREFIX (now $(PREFIX)); 'make install-library': only the library for programs in C;"
	@echo "               'make uninstall' takes all of it away"
	@echo "make clean     remove what was built"

demo:
	scripts/setup demo
	cargo xtask demo

test:
	scripts/setup test
	cargo xtask test

check: lint
	cargo test --workspace --exclude ropeway-testkit --lib --bins --tests --quiet
	cargo test -p ropeway-testkit --lib --quiet

# What reads the code and runs none of it. The named library is never opened, because nothing is linked: without the name libFuzzer would be compiled, 17 s of C++.
.PHONY: lint
lint:
	cargo fmt --all --check
	cargo xtask tidy
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	CUSTOM_LIBFUZZER_PATH=/none/libFuzzer.a cargo clippy --manifest-path fuzz/Cargo.toml --locked --target-dir $(CARGO_TARGET_DIR) --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --quiet

fuzz:
	cargo xtask test --for $(FUZZ_SECONDS) --suite unit --suite random --suite faults=hostile
	scripts/fuzz $(FUZZ_SECONDS)

soak:
	cargo xtask soak --seconds $(SOAK_SECONDS)

bench: build
	$(PRODUCT)/ropeway bench pingpong
	$(PRODUCT)/ropeway bench rate
	$(PRODUCT)/ropeway bench stream

# Compiled by what a training run has shown of it (docs/building.md); `make GUIDED=no ...`: without, in half of the time.
export GUIDED ?= yes
PRODUCT := $(CARGO_TARGET_DIR)/product

.PHONY: build build-library
build:
	scripts/setup build
	cargo xtask build

# Named beside it, the program decides which features what both are made of has: as tests have that built, who install the library too.
build-library:
	cargo build --profile $(PROFILE) --target-dir $(CARGO_TARGET_DIR) -p ropeway-capi -p ropeway --lib

install: build install-library
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/ropeway
	install -m 755 $(PRODUCT)/ropeway $(DESTDIR)$(PREFIX)/bin/ropeway
	install -m 644 $(PRODUCT)/libropeway_preload.so $(DESTDIR)$(PREFIX)/lib/ropeway/libropeway_preload.so
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 docs/man/ropeway.1 $(DESTDIR)$(PREFIX)/share/man/man1/ropeway.1
	install -d $(DESTDIR)$(PREFIX)/share/ropeway
	install -m 644 share/wireshark/ropeway.lua $(DESTDIR)$(PREFIX)/share/ropeway/ropeway.lua

# For programs that are written for Ropeway: docs/api.md.
.PHONY: install-library
install-library: build-library
	install -d $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/share/man/man3
	install -m 644 crates/capi/include/ropeway.h crates/capi/include/cdp.h $(DESTDIR)$(PREFIX)/include
	install -m 755 $(CARGO_TARGET_DIR)/$(patsubst dev,debug,$(PROFILE))/libropeway_capi.so $(DESTDIR)$(PREFIX)/lib/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(PREFIX)/lib/$(LIBRARY)
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' crates/capi/ropeway.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/ropeway.pc
	chmod 644 $(DESTDIR)$(PREFIX)/lib/pkgconfig/ropeway.pc
	install -m 644 docs/man/ropeway.3 docs/man/cdp.3 $(DESTDIR)$(PREFIX)/share/man/man3
	if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig || true; fi

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/ropeway $(DESTDIR)$(PREFIX)/lib/ropeway/libropeway_preload.so
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/ropeway.1 $(DESTDIR)$(PREFIX)/share/ropeway/ropeway.lua
	rm -f $(DESTDIR)$(PREFIX)/include/ropeway.h $(DESTDIR)$(PREFIX)/include/cdp.h $(DESTDIR)$(PREFIX)/lib/pkgconfig/ropeway.pc
	rm -f $(DESTDIR)$(PREFIX)/lib/$(LIBRARY) $(DESTDIR)$(PREFIX)/lib/$(SONAME)
	rm -f $(DESTDIR)$(PREFIX)/share/man/man3/ropeway.3 $(DESTDIR)$(PREFIX)/share/man/man3/cdp.3
	-rmdir $(DESTDIR)$(PREFIX)/lib/ropeway $(DESTDIR)$(PREFIX)/share/ropeway

clean:
	cargo clean
