# `make` says what there is. Everything works in a clean clone on Debian 12, as root: tools/setup brings what is missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Debian's own Python: the one that python3-pytest belongs to.
PYTHON ?= /usr/bin/python3
# More arguments for pytest, for example PYTEST_ARGS="-k docker -x".
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 60
# The nightly Rust that tools/setup brings, for fuzzing and for Miri.
NIGHTLY := $(shell sed -n 's/^nightly=//p' tools/setup)
STRESS_SECONDS ?= 600
LAB_ARGS ?=
PREFIX ?= /usr/local
# For which machine `make tarball` and `make image` build, amd64 or arm64; without it, for this one, the image for both.
ARCH :=
export ARCH
ifneq ($(ARCH),)
  ifneq ($(filter-out tarball image install-only,$(MAKECMDGOALS)),)
    $(error ARCH=$(ARCH) is for `make tarball` and `make image`; the rest is made for this machine)
  endif
endif
DESTDIR ?=

# A Rust that tools/setup installed is found without a new login.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH):/usr/sbin:/sbin
export CARGO_TERM_COLOR ?= auto

# What is in the release binary: the dashboard, and BPF where it can be compiled: clang, libelf.a and libz.a
# (docs/decisions/0022-bpf-in-releases.md). `make build FEATURES=` leaves both out. Looked up when it is needed: what a target has
# just installed counts.
ARCHIVE = $(filter /%,$(shell cc -print-file-name=$(1)))
BPF = $(if $(and $(shell command -v clang),$(call ARCHIVE,libelf.a),$(call ARCHIVE,libz.a)),bpf-static)
FEATURES ?= dashboard $(BPF)

BINARY := target/release/elbowroom
PYTEST := $(PYTHON) -m pytest -p no:cacheprovider -rs $(PYTEST_ARGS)

# The steps of a target run one after another: a figure taken while the next thing compiles is no figure.
.NOTPARALLEL:
.PHONY: help run test build dashboard dashboard-test java gpu check setup-test live live-programs vm-test kernels-test soak engines-test engines-bench kube-test runtimes-test peers-test java-stress \
  audit bench lab score fuzz api-fuzz vm-test-arm64 systemd-test \
  install install-only deb rpm tarball image release package-test prometheus-test sanitize deny clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## build, and watch three containers share this machine (20 s)
	@tools/setup run
	@$(MAKE) --no-print-directory build
	@tools/demo

test: ## everything: check, then live and vm-test beside each other (21 min on two CPUs)
	@tools/setup test vm
	@$(MAKE) --no-print-directory check build java
	@$(LINTED) LIVE_TESTS='$(LIVE_TESTS)' PYTEST_ARGS='$(PYTEST_ARGS)' tests/all

CARGO = LIBBPF_SYS_LIBRARY_PATH=$(dir $(call ARCHIVE,libelf.a)) cargo
RELEASE = --release --locked --package elbowroom --features "$(FEATURES)"

# elbowroom-runtime is run several times for a container's start: a static program begins half a millisecond sooner.
build: $(filter dashboard,$(FEATURES)) ## the release binary, with its dashboard, and with BPF where it can be compiled
	$(CARGO) build $(RELEASE) --bin elbowroom
	$(CARGO) rustc $(RELEASE) --bin elbowroom-runtime -- -C target-feature=+crt-static

# npm runs only when something changed: what was built is newer than its sources.
dashboard: target/dashboard/index.html ## the page that the agent serves, into target/dashboard

target/dashboard/index.html: dashboard/package-lock.json dashboard/build.mjs dashboard/tsconfig.json dashboard/index.html dashboard/icon.svg $(wildcard dashboard/src/*) $(wildcard dashboard/src/pages/*)
	@tools/setup dashboard
	cd dashboard && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error && npm run --silent check && npm run --silent build

dashboard-test: build ## the dashboard in a real browser: simulated agents, and a real one with real containers; root for those
	@tools/setup dashboard-test
	cd tests/dashboard && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error && npm test --silent

java: ## the agent for HotSpot, elbowroom-agent.jar
	@tools/setup java
	$(MAKE) --directory java jar

gpu: build ## the tracing library of `profile gpu` and its benchmarks, and their tests, which need no GPU
	@tools/setup gpu
	$(MAKE) --directory gpu check ELBOWROOM=../$(BINARY)

# Clippy compiles the tests, and says what it finds on the way: third-party code is compiled once, not for Clippy alone too. This is how
# `cargo clippy -- -D warnings` calls it.
LINTED := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__

check: ## format, lints, unit and property tests (5 min in a clean clone, on two CPUs); needs no root
	@tools/setup check
	cargo fmt --all --check
	tools/house
	tools/supply
	$(LINTED) tools/run-tests --locked
	$(MAKE) --no-print-directory --quiet -C shim
	$(PYTHON) -m unittest discover --quiet --start-directory tools/tests
	$(PYTHON) -m unittest discover --quiet --start-directory python/tests
	$(PYTHON) -m unittest discover --quiet --start-directory lab/tests --top-level-directory .

setup-test:
	@tools/setup test

# Which failed is kept for tests/all.
LIVE_TESTS = $(PYTHON) -m pytest -o cache_dir=$(CURDIR)/target/pytest -rfEs $(PYTEST_ARGS) \
  --ignore tests/live/test_api_fuzz.py --ignore tests/live/test_peers.py tests/live

live: setup-test build java live-programs ## tests with real containers on this machine (20 min); root
	$(LIVE_TESTS)

live-programs:
	$(MAKE) --directory java check
	$(LINTED) cargo test --workspace --locked --quiet --features elbowroom-linux/bpf,elbowroom-profile/bpf --test bpf --test profile_pages --test profile_faults

vm-test: build ## part of it on cgroup v2, Linux 6.12 and 6.1, with 1 to 16 CPUs (20 min); root
	@tools/setup vm
	$(LINTED) tests/vm/run

systemd-test: build ## systemd-nspawn and Podman, also rootless, in a guest whose first process is systemd; root
	@tools/setup systemd
	tests/vm/systemd $(PYTEST_ARGS)

kernels-test: build ## what works on which of Debian's kernels, 5.10 to 7.3: the table of docs/guide/kernels.md (16 min a kernel at most); root
	@tools/setup test vm
	tests/vm/kernels

soak: build ## 500 rounds of 20 containers that come and go, 200 kills while limits change, 100 of a recorder; root, long
	@tools/setup test
	ELBOWROOM_TEST_KILLS=200 $(PYTEST) -s tests/live/test_disk_cli.py -k however_often
	ELBOWROOM_TEST_RECORDER_KILLS=100 $(PYTEST) -s tests/live/test_recorder.py -k kill
	ELBOWROOM_TEST_ROUNDS=500 ELBOWROOM_TEST_CONTAINERS=20 $(PYTEST) tests/live/test_density.py

engines-test: build ## containers on containerd 2, Docker of today, CRI-O and Podman, built once into .cache (15 min); root
	@tools/setup engines
	$(PYTEST) tests/live/test_engines.py

engines-bench: build ## what views cost the start of a container, per engine (5 min); root
	@tools/setup engines
	ELBOWROOM_ENGINES_ROUNDS=30 ELBOWROOM_ENGINES_RESULTS=lab/results/$$(date +%F)-engines $(PYTEST) tests/live/test_engines.py -k test_cost

runtimes-test: build java ## what reaches which runtime, and servers that follow: the table of docs/guide/runtimes.md (5 min; apt, PyPI); root
	@tools/setup test runtimes
	ELBOWROOM_TEST_RUNTIMES=all ELBOWROOM_TEST_JVMS=$$(printf '%s:' $(CURDIR)/.cache/runtimes/jdk-*) \
	  $(PYTEST) -s tests/live/test_matrix.py tests/live/test_follow.py

peers-test: build ## what fails in a view of the own tests of lxcfs, psutil, gopsutil, procps and hwloc: the table of docs/testing.md (15 min; apt, PyPI, Go); root
	@tools/setup peers
	$(PYTEST) -s tests/live/test_peers.py

java-stress: java ## views that change all the time, for STRESS_SECONDS (600), every collector of every JDK at once; ONLY="17-g1 25"; root
	@tools/setup test
	ELBOWROOM_TEST_JVMS=$${ELBOWROOM_TEST_JVMS:-$$(printf '%s:' $(CURDIR)/.cache/runtimes/jdk-*)} \
	  $(MAKE) --directory java stress SECONDS=$(STRESS_SECONDS) ONLY="$(ONLY)"

kube-test: build ## pods on a real Kubernetes of one node, built once into .cache (40 min), and an agent; 8 min; root
	@tools/setup kube
	cargo build --release --locked --package elbowroom-kube
	$(PYTEST) tests/kube

audit: build ## what `elbowroom audit` says of 28 roots, beside what strace sees (10 min; Debian, PyPI and npm packages); root
	@tools/setup test audit
	ELBOWROOM_AUDIT_RESULTS=lab/results/$$(date +%F)-audit $(PYTEST) tests/live/test_audit.py

bench: build ## what reads and updates cost, beside the kernel and the peer (20 min)
	@tools/setup bench
	for job in read swarm tick; do $(PYTHON) -m lab $$job; done
	mkdir -p lab/results/$$(date +%F)-shim
	$(MAKE) --no-print-directory --quiet -C shim bench > lab/results/$$(date +%F)-shim/ns.tsv

lab: $(if $(LAB_ARGS),build) ## the papers' experiments: LAB_ARGS="JOB ..."; without it, which there are and how long they last
	@$(if $(LAB_ARGS),tools/setup lab)
	@$(PYTHON) -m lab $(LAB_ARGS)

score: build ## who does what best: nothing, lxcfs, bfq, iocost, limits by hand, Elbowroom; one page (an hour); root
	@tools/setup lab vm
	lab/plans/score

fuzz: ## every decoder of foreign bytes, FUZZ_SECONDS (60) each: half an hour
	@tools/setup fuzz
	cd fuzz && for target in $$(cargo +$(NIGHTLY) fuzz list); do \
	  cargo +$(NIGHTLY) fuzz run "$$target" -- -max_total_time=$(FUZZ_SECONDS); done

sanitize: java ## Miri, loom, and C under the address, undefined behaviour and thread sanitizers
	@tools/setup sanitize gpu
	NIGHTLY=$(NIGHTLY) tools/sanitize

deny: ## licences, advisories and sources of every crate and npm package; the network, for advisories
	@tools/setup deny
	tools/deny

api-fuzz: build ## the HTTP API against its own document, by schemathesis (PyPI; some min); root
	@tools/setup test api-fuzz
	$(PYTEST) -s tests/live/test_api_fuzz.py

# Where files go. The packages are this list too: packaging/deb/build sets these as Debian has them.
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
SHAREDIR ?= $(PREFIX)/share
DOCDIR ?= $(SHAREDIR)/doc/elbowroom
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
ZSHDIR ?= $(SHAREDIR)/zsh/site-functions
PYTHONDIR ?= $(PREFIX)/lib/python3/dist-packages
# By what the libraries are compiled, where not by this machine's: CC=... AR=... BUILD=..., which no other compiler is to see.
SHIMS ?=
D = $(DESTDIR)
# Files that name others, in their place.
PLACED = sed 's|@BINDIR@|$(BINDIR)|; s|@DOCDIR@|$(DOCDIR)|; s|@PREFIX@|$(PREFIX)|'

install: build java install-only ## below PREFIX (/usr/local); DESTDIR for packagers

# Programs come beside the old ones and are renamed: an engine that starts a hook just then finds one or the other.
install-only:
	for name in elbowroom elbowroom-runtime; do \
	  install -D -m 0755 $(dir $(BINARY))$$name $D$(BINDIR)/.$$name.new && mv -f $D$(BINDIR)/.$$name.new $D$(BINDIR)/$$name || exit 1; \
	done
	install -D -m 0644 target/java/elbowroom-agent.jar $D$(SHAREDIR)/elbowroom/elbowroom-agent.jar
	install -D -m 0755 -t $D$(PREFIX)/lib/elbowroom/probes probes/mariadb probes/postgres
	install -D -m 0644 -t $D$(PREFIX)/lib/elbowroom/probes probes/Jmx.java
	install -D -m 0755 -t $D$(PREFIX)/lib/elbowroom/actuators actuators/*
	$(MAKE) --no-print-directory -C shim install PREFIX=$(PREFIX) LIBDIR=$(LIBDIR) DESTDIR=$D $(SHIMS)
	install -D -m 0644 -t $D$(PYTHONDIR)/elbowroom python/elbowroom/*.py
	cargo xtask man $D$(SHAREDIR)/man/man1
	ln -sf elbowroom.1 $D$(SHAREDIR)/man/man1/elbowroom-runtime.1
	cargo xtask completions target/completions
	install -D -m 0644 target/completions/elbowroom.bash $D$(SHAREDIR)/bash-completion/completions/elbowroom
	install -D -m 0644 target/completions/_elbowroom $D$(ZSHDIR)/_elbowroom
	install -D -m 0644 -t $D$(SHAREDIR)/fish/vendor_completions.d target/completions/elbowroom.fish
	install -d $D$(UNITDIR)
	$(PLACED) packaging/systemd/elbowroom.service.in > $D$(UNITDIR)/elbowroom.service
	$(PLACED) packaging/systemd/elbowroom-keeper.service.in > $D$(UNITDIR)/elbowroom-keeper.service
	install -D -m 0644 packaging/systemd/elbowroom.sysusers $D$(PREFIX)/lib/sysusers.d/elbowroom.conf
	test -e $D$(SYSCONFDIR)/elbowroom/elbowroom.toml || \
	  install -D -m 0640 packaging/elbowroom.toml $D$(SYSCONFDIR)/elbowroom/elbowroom.toml
	install -D -m 0644 -t $D$(DOCDIR) LICENSE-APACHE LICENSE-MIT
	packaging/pages $D$(DOCDIR)
	install -D -m 0644 -t $D$(DOCDIR)/examples probes/requests.py probes/requests.sh
	for name in $(notdir $(wildcard packaging/examples/*)); do $(PLACED) packaging/examples/$$name > $D$(DOCDIR)/examples/$${name%.in}; done
	install -D -m 0644 -t $D$(SHAREDIR)/elbowroom/prometheus packaging/prometheus/elbowroom.rules.yml packaging/prometheus/scrape.yml
	install -D -m 0644 -t $D$(SHAREDIR)/elbowroom/grafana packaging/grafana/elbowroom.json

deb: build java ## Debian packages, below target/deb
	@tools/setup deb
	packaging/deb/build

rpm: tarball ## RPM packages, of the tarball's static programs, below target/rpm
	@tools/setup rpm
	packaging/rpm/build

tarball: dashboard java ## the agent for any Linux of ARCH (amd64, arm64; this machine's), statically linked, below target/tarball
	@tools/setup tarball $(filter arm64,$(ARCH))
	packaging/tarball

vm-test-arm64: ARCH = arm64
vm-test-arm64: tarball ## the agent of `make tarball ARCH=arm64` in an emulated arm64 guest with Debian's Linux 6.12; root
	@tools/setup vm-arm64
	tests/vm/arm64

image: dashboard java ## container image of the agent and elbowroom-kube for amd64 and arm64 (or ARCH), statically linked: below target/image
	@tools/setup tarball $(filter arm64,$(or $(ARCH),arm64))
	packaging/image

release: ## packages, tarballs, install.sh, image, SBOM, SHA256SUMS of HEAD, below target/dist; RELEASE_KEY=FILE signs; RELEASE_ARGS=--twice builds in two directories and compares
	@tools/setup release arm64
	packaging/release $(RELEASE_ARGS)

package-test: deb rpm image ## installs, upgrades, kills and purges the packages in a clean Debian 12 (10 to 15 min), looks into the image; root
	@tools/setup package
	tests/packages/run $(PYTEST_ARGS)

prometheus-test: build ## a real Prometheus scrapes an agent, an alert arrives, and an OpenTelemetry Collector takes pushes (2 min; Go, built once in 5); root
	@tools/setup prometheus
	$(PYTEST) tests/prometheus

clean: ## build outputs and downloaded kernels
	cargo clean
	rm -rf .cache fuzz/target shim/build dashboard/node_modules tests/dashboard/node_modules
