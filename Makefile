# `make` says what there is. Everything works in a clean clone on Debian 12, as root: tools/setup brings what is missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Debian's own Python: the one that python3-pytest belongs to.
PYTHON ?= /usr/bin/python3
# More arguments for pytest, for example PYTEST_ARGS="-k docker -x".
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 60
LAB_ARGS ?= --help
PREFIX ?= /usr/local
DESTDIR ?=

# A Rust that tools/setup installed is found without a new login.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH):/usr/sbin:/sbin
export CARGO_TERM_COLOR ?= auto

BINARY := target/release/elbowroom
PYTEST := $(PYTHON) -m pytest -p no:cacheprovider -rs $(PYTEST_ARGS)

# The steps of a target run one after another: a figure taken while the next thing compiles is no figure.
.NOTPARALLEL:
.PHONY: help run test build java check live vm-test soak audit bench lab fuzz install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## build, and watch three containers share this machine (20 s)
	@tools/setup run
	@$(MAKE) --no-print-directory build
	@tools/demo

test: ## everything: check, live and vm-test
	@tools/setup test vm
	@$(MAKE) --no-print-directory check live vm-test

build: ## the release binary
	cargo build --release --locked --package elbowroom

java: ## the agent for HotSpot, elbowroom-agent.jar
	@tools/setup java
	$(MAKE) --directory java jar

check: ## format, lints, unit and property tests; needs no root
	@tools/setup check
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo test --workspace --locked --quiet
	$(MAKE) --no-print-directory --quiet -C shim
	$(PYTHON) -m unittest discover --quiet --start-directory python/tests

live: build java ## tests with real containers on this machine; root
	@tools/setup test
	$(MAKE) --directory java check
	cargo test --locked --quiet --package elbowroom-host --features bpf --test bpf
	$(PYTEST) tests/live

vm-test: build ## the same on a cgroup v2 kernel with 4 CPUs, and some with 16; root
	@tools/setup vm
	tests/vm/run

soak: build ## 500 rounds of 20 containers that come and go, 200 kills while limits change; root, long
	@tools/setup test
	ELBOWROOM_TEST_KILLS=200 $(PYTEST) -s tests/live/test_disk_cli.py -k however_often
	ELBOWROOM_TEST_ROUNDS=500 ELBOWROOM_TEST_CONTAINERS=20 $(PYTEST) tests/live/test_density.py

audit: build ## what `elbowroom audit` says of 28 roots, beside what strace sees (10 min; Debian, PyPI and npm packages); root
	@tools/setup test audit
	ELBOWROOM_AUDIT_RESULTS=lab/results/$$(date +%F)-audit $(PYTEST) tests/live/test_audit.py

bench: build ## what reads and updates cost, beside the kernel and the peer (20 min)
	@tools/setup bench
	for job in read swarm tick; do cargo run --release --locked --quiet --package elbowroom-lab -- $$job; done
	mkdir -p lab/results/$$(date +%F)-shim
	$(MAKE) --no-print-directory --quiet -C shim bench > lab/results/$$(date +%F)-shim/ns.tsv

lab: build ## the papers' experiments: LAB_ARGS="..."
	@tools/setup lab
	cargo run --release --locked --quiet --package elbowroom-lab -- $(LAB_ARGS)

fuzz: ## every decoder of foreign bytes, FUZZ_SECONDS (60) each
	@tools/setup fuzz
	cd fuzz && for target in $$(cargo +nightly fuzz list); do \
	  cargo +nightly fuzz run "$$target" -- -max_total_time=$(FUZZ_SECONDS); done

install: build java ## below PREFIX (/usr/local); DESTDIR for packagers
	install -D -m 0755 $(BINARY) $(DESTDIR)$(PREFIX)/bin/elbowroom
	install -D -m 0644 target/java/elbowroom-agent.jar $(DESTDIR)$(PREFIX)/share/elbowroom/elbowroom-agent.jar
	ln -sf elbowroom $(DESTDIR)$(PREFIX)/bin/elbowroom-runtime
	cargo xtask man $(DESTDIR)$(PREFIX)/share/man/man1
	cargo xtask completions $(DESTDIR)$(PREFIX)/share/elbowroom/completions
	$(MAKE) --no-print-directory -C shim install PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)

clean: ## build outputs and downloaded kernels
	cargo clean
	rm -rf .cache fuzz/target shim/build
