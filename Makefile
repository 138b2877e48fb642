# SPDX-License-Identifier: GPL-2.0
#
# Everything is built and run in the sysroot, which `make setup` builds; see `make help`.

SHELL := /bin/bash
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

top := $(CURDIR)
build := build
# Quiet unless V=1, as in the kernel.
V ?= 0
quiet := $(if $(filter 1,$(V)),,--quiet)

enter := tools/dev/enter
# The programs' profile: release, or quick, whose builds after a change take seconds.
PROFILE ?= release
bin := $(build)/target/$(PROFILE)
testbed := $(enter) $(bin)/testbed

# KERNEL=SERIES builds modules for a kernel of another series than the sysroot's. These modules and
# this kernel's tree are in build/kernels/SERIES.
kernel = $(build)$(if $(KERNEL),$(if \
	$(filter $(KERNEL).%,$(file <$(build)/kernel.release)),,/kernels/$(KERNEL)))

# The module is built against the kernel's prepared tree with the compilers that built the kernel.
# The flags make warnings in our Rust and C code errors; they do not apply to the kernel's crates.
KRUSTFLAGS ?= -Dwarnings
kbuild = mkdir -p $(kernel)/$(1) && \
	$(enter) make -C $(top)/$(kernel)/kernel M=$(top)$(2) MO=$(top)/$(kernel)/$(1) \
	CC=x86_64-linux-gnu-gcc-14 HOSTCC=gcc-14 V=$(V) $(if $(filter 1,$(V)),,-s) \
	KRUSTFLAGS="$(KRUSTFLAGS)" KCFLAGS=-Werror -j$(shell nproc)

.PHONY: help help-all setup t vm build module module-clippy module-doc kverbs provider device \
	tools demo bundle-dir bundle bundle-sources shell check check-more check-debug \
	check-pyverbs check-versions check-kernels check-rdma-core check-small check-intree \
	kernel-small kernel-support sim planted \
	sanitize mutants mutants-module pacing bench bench-archive bench-keep lint unit selftests \
	fmt clean distclean fuzz fuzz-replay fuzz-merge fuzz-coverage intree prose cycles install \
	uninstall packages check-packages check-suites

help:
	@printf '%s\n' \
		'make demo       two virtual machines with an RDMA link between them, and what it does' \
		'make shell      a prompt in such a machine ("on 2 COMMAND" reaches the other one)' \
		'make check      lints, unit tests, module build, tests in machines; 40 minutes' \
		'make t CRATE=roce T=NAME   tests of a crate whose names contain NAME, by the host'\''s Rust' \
		'make vm T=selftests/link.sh TESTS=test_NAME   a script in machines, with programs compiled quickly' \
		'make bundle-dir build/bundle: virtio-rdma and all that it needs, for other machines' \
		'make build      the kernel module, the provider, the device, the tools' \
		'make clean      remove programs, modules and logs; distclean: all of build, the sysroot too' \
		'make help-all   all targets'

help-all: help
	@printf '%s\n' '' \
		'make setup      the sysroot: compilers, kernel, QEMU, rdma-core; 3 to 6 minutes and 6 GB, once' \
		'make check-more    the tests in other machines: virtqueue mode, rxe, rdma-core'\''s tests ...' \
		'make check-debug   the tests in machines again, on a kernel that watches itself (KASAN, lockdep ...)' \
		"make check-pyverbs all of rdma-core's own tests, on our device and on rxe" \
		'make check-versions    providers and modules of other versions against the present ones' \
		'make check-kernels     the module for older kernel series, and tests on them' \
		'make check-rdma-core   the provider with the rdma-core of other Debian releases; downloads these' \
		'make sim        whole engines driven step by step, by 100,000 seeds; SEEDS=FIRST..END are others' \
		'make planted    known bugs, each put into a copy: which test catches it; KIND=vm those of machines' \
		'make fuzz       fuzz targets, T=SECONDS each (60); TARGETS="NAME..." are those to run' \
		'make fuzz-replay TARGET=NAME FILE=FILE   runs a target on what it failed on' \
		'make fuzz-merge  adds the inputs that fuzzing has found to the corpora of the tree' \
		'make fuzz-coverage   which lines of each parser the fuzz corpora reach; fails below 90 %' \
		'make sanitize   unit tests under Address- and ThreadSanitizer; more than an hour' \
		'make mutants    how many small changes of the code the tests notice: a sample; SEED=N draws another' \
		'make mutants-module   the same of the kernel module, by tests in machines; an hour' \
		'make intree     the driver as a part of the kernel: compiled and checked there; 15 minutes' \
		'make check-intree  the same, and tests on this kernel' \
		'make kernel-small  a small kernel for VMs from source, build/small; check-small tests it; 6 minutes' \
		'make bench      figures: direct, over packets, beside rxe and TCP; a table and build/bench/index.html' \
		'make bench-archive  the same, and an archive of it to be sent' \
		'make bench-keep     later runs are compared with the last one' \
		'make pacing     rate limits by the clock of this machine: measured against asked rates' \
		'make bundle     build/bundle as an archive; bundle-sources: what must be published beside it' \
		'make module | kverbs | provider | device | tools   one of them' \
		'make kernel-support KDIR=TREE   what a kernel tree lacks for module and machines' \
		'make module-doc   documentation of the kernel abstractions, in build/module-doc' \
		'make lint | unit | selftests              one part of check' \
		'make install    daemon, provider, module source, systemd unit: DESTDIR=, PREFIX=/usr/local; uninstall' \
		'make packages   Debian packages of daemon, provider and module, in build/debian/debs' \
		'make check-suites   programs and suites of Debian releases in VMs with their root; downloads 2 GB' \
		'make check-packages    the packages in a Debian system that boots, and libvirt; downloads 1 GB' \
		'make prose      breaches of style' \
		'make cycles     imports in cycles that are not allowed' \
		'make fmt        format the sources' \
		'' \
		'KERNEL=SERIES builds module and kverbs for an older kernel series, in build/kernels/SERIES;' \
		'KDIR=TREE for the kernel of any prepared tree, in build/kernels/RELEASE.' \
		'V=1 shows the commands. VM="OPTIONS" goes to the machines (demo, shell); see' \
		'"tools/dev/testbed run --help". T="FILE..." are the selftests to run. BENCH="OPTIONS" goes to the' \
		'figures: --full, --rounds N ...'

setup:
	@tools/dev/setup

# The tests of one crate whose names contain T. The host's Rust compiles them if it is recent enough
# and the crate needs no library or program of the sysroot.
version = $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
of_sysroot := virtio-rdma-provider verbs-test virtio-rdmad bench fuzz
on_host = $(if $(filter $(of_sysroot),$(CRATE)),,$(shell printf '%s\n' '$(version)' \
	"$$(cargo --version 2>/dev/null | cut -d ' ' -f 2)" | sort -CV && echo yes))
t: $(if $(on_host),,setup)
	@$(if $(CRATE),,$(error CRATE=NAME is missing, for example: make t CRATE=roce T=psn))
	$(if $(on_host),CARGO_TARGET_DIR=$(build)/target-host,$(enter) env) CARGO_INCREMENTAL=1 \
		cargo test $(quiet) -p $(CRATE) $(T)

# One or more scripts in virtual machines. TESTS has names of test functions. MARK=more takes the
# machines of check-more.
vm:
	@$(if $(T),,$(error T=SCRIPT is missing, for example: make vm T=selftests/link.sh))
	@$(MAKE) --no-print-directory PROFILE=quick build
	@PROFILE=quick tools/dev/testbed test --vm "$(VM)" $(if $(MARK),--mark $(MARK)) $(T)

build: module kverbs provider device tools

# KDIR=TREE builds it for the kernel of any prepared tree instead.
module: setup
	$(if $(KDIR),tools/dev/module-for $(KDIR) module,$(call kbuild,module) modules)

# Checks the module with clippy, in a directory of its own: in build/module, make would consider the
# objects up to date.
module-clippy: setup
	$(call kbuild,module-clippy) CLIPPY=1 modules

# The documentation of the abstractions under rust/: build/module-doc/abstractions/index.html.
module-doc: module
	$(enter) tools/dev/module-doc

# Tests of the verbs that kernel clients use.
kverbs: setup
	$(if $(KDIR),tools/dev/module-for $(KDIR) kverbs,\
		$(call kbuild,kverbs,/selftests/kverbs) modules)

# Reports what the kernel of a prepared tree lacks for our modules and for VMs.
kernel-support: setup
	@$(if $(KDIR),,$(error KDIR=TREE is missing))
	@tools/dev/kernel-support $(KDIR)

# One library with many names: for linking programs, for loading by programs, and for loading by
# libibverbs. The last name contains the number of libibverbs' private ABI.
provider: setup
	$(enter) cargo build $(quiet) --profile $(PROFILE) -p virtio-rdma-provider
	@mkdir -p $(build)/provider
	@install $(bin)/libvirtio_rdma_provider.so $(build)/provider/libvirtio_rdma.so.1
	@ln -sf libvirtio_rdma.so.1 $(build)/provider/libvirtio_rdma.so
	@for abi in $$(sed -n 's/^ *abi: \([0-9]*\),$$/\1/p' tools/provider/src/layouts.rs); do \
		ln -sf libvirtio_rdma.so.1 $(build)/provider/libvirtio_rdma-rdmav$$abi.so; \
	done
	@install -m 644 tools/provider/virtio_rdma.driver tools/provider/libvirtio_rdma.pc \
		$(build)/provider/
	@install -m 644 -D -t $(build)/provider/include/infiniband \
		tools/provider/include/infiniband/virtio_rdma_dv.h

# The daemon that users get names the lines of a panic's backtrace. Tests do without: line tables
# make it take half as long again to link.
lines := env CARGO_PROFILE_RELEASE_DEBUG=line-tables-only
packages: with_lines := $(lines)

device: setup
	$(enter) $(with_lines) cargo build $(quiet) --profile $(PROFILE) -p virtio-rdmad

# Statically linked programs run in any root file system.
static = RUSTFLAGS="-C target-feature=+crt-static" $(enter) $(1) cargo build $(quiet) \
	--target x86_64-unknown-linux-gnu
portable := $(call static) --profile portable

# The modules that guests load at their start. Tests load others from the sysroot.
boot_modules := overlay virtio_blk ext4 virtio_net ib_uverbs rdma_ucm ib_umad rdma_rxe

$(build)/kernel.release: | setup ;

$(build)/modules/made: $(build)/kernel.release Makefile tools/launcher/guest-modules
	$(enter) tools/launcher/guest-modules $(build)/modules/$(file <$(build)/kernel.release) \
		$(file <$(build)/kernel.release) $(boot_modules)
	@touch $@

tools: setup $(build)/modules/made
	$(enter) cargo build $(quiet) --profile $(PROFILE) -p launcher -p verbs-test --bins \
		--examples
	$(portable) -p guest
	@install -t $(bin) $(build)/target/x86_64-unknown-linux-gnu/portable/virtio-rdma-guest

# Everything that `virtio-rdma` needs, in one directory that can be moved and be read-only. The
# daemon is linked statically: started by the bundle's loader, it could not execute itself again.
bundle-dir: module provider tools
	$(call static,$(lines)) --release -p virtio-rdmad
	$(portable) -p launcher --bin virtio-rdma
	@tools/launcher/bundle $(build)/bundle

archive = $(build)/virtio-rdma-$(shell tools/launcher/packages/version)-x86_64.tar.xz

bundle: bundle-dir
	@tools/launcher/bundle --archive $(build)/bundle $(archive)

# The sources of all parts of the bundle, to be published with it.
bundle-sources:
	@tools/launcher/bundle --sources $(build)/bundle $(build)/bundle-sources

# Installs after "make build". tools/launcher/packages/install describes the variables.
install:
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" LIBDIR="$(LIBDIR)" SYSCONFDIR="$(SYSCONFDIR)" \
		tools/launcher/packages/install

uninstall:
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" LIBDIR="$(LIBDIR)" SYSCONFDIR="$(SYSCONFDIR)" \
		tools/launcher/packages/install --uninstall

packages: provider device
	@tools/launcher/packages/build

# Installs the packages in a Debian system and boots it. SUITE=testing selects Debian testing and
# its kernel.
check-packages: packages tools
	@tools/launcher/packages/check $(SUITE)
	@tools/launcher/packages/test-libvirt

# Runs foreign test suites (Documentation/foreign-suites.md). SUITES="RELEASE... crates" selects the
# roots.
SUITES ?= trixie bookworm testing crates
check-suites: bundle-dir
	@status=0; for suite in $(SUITES); do \
		logs=$(top)/$(build)/suites/$$suite; mkdir -p $$logs; \
		case $$suite in \
		crates) tests=test_sideway && \
			root=$$(tools/launcher/packages/crate sideway 0.4.3 home@0.5.11) ;; \
		*) tests="$(TESTS)"; root=$$(tools/launcher/packages/tree programs-$$suite) ;; \
		esac && \
		TESTS=$$tests ROOT=$$root LOGS=$$logs selftests/launcher/suites.sh || status=1; \
	done; exit $$status

demo: build
	@$(testbed) demo $(VM)

shell: build
	@$(testbed) shell $(VM)

check: setup
	@tools/dev/check

check-more: build
	@tools/dev/check more

check-debug: build
	@tools/dev/check debug leaks

# Runs all tests of pyverbs. check-more runs the quick ones.
check-pyverbs: build
	@T=selftests/pyverbs/all.sh tools/dev/check selftests

# Tests provider and module of different versions. BEFORE=REVISION sets the old revision, by default
# the last one without version ranges.
check-versions: build
	tools/dev/versions
	@T=selftests/versions/all.sh tools/dev/check selftests

check-kernels: build
	@tools/dev/check kernels

check-rdma-core: build
	tools/dev/rdma-core
	@T=selftests/rdma-core/all.sh tools/dev/check selftests

# A small kernel for VMs: tools/dev/testbed run --kernel build/small.
kernel-small: setup
	@tools/dev/vm-kernel small

check-small: build
	@tools/dev/check small

check-intree: build
	@tools/dev/check in-tree

# Builds the driver in the kernel's tree (Documentation/in-tree.md).
intree: setup
	@tools/dev/intree

# Runs the simulation with many seeds. The unit tests run the first ones of each variant.
SEEDS ?= 0..100000
sim: setup
	$(enter) env SIM_SEEDS=$(SEEDS) cargo test $(quiet) --release -p verbs --test sim

# Plants known bugs. KIND has names of files in selftests/planted, or a kind of test.
KIND ?=
planted: setup
	@tools/dev/planted $(KIND)
# Fuzzes each target for T seconds.
fuzz: setup
	@$(enter) cargo run $(quiet) -p fuzz -- run --seconds $(or $(T),60) $(TARGETS)

fuzz-replay: setup
	@$(enter) cargo run $(quiet) -p fuzz -- replay $(TARGET) $(FILE)

# Adds the inputs that fuzzing has found to the corpora of the tree.
fuzz-merge: setup
	@$(enter) cargo run $(quiet) -p fuzz -- merge $(TARGETS)

# Reports the coverage of the fuzz targets. With --lines, the program lists unreached lines.
fuzz-coverage: setup
	@$(enter) cargo run $(quiet) -p fuzz -- coverage

sanitize: setup
	tools/dev/sanitize address
	tools/dev/sanitize thread

SEED ?= 1
mutants: setup
	@tools/dev/mutants/run --seed=$(SEED)

# Changes the driver and its abstractions. Each change is tested in machines of its own.
mutants-module: build
	@tools/dev/mutants/run --module --seed=$(SEED)

# Measures the pacing of rate limits. Not a check, since the figures depend on the machine.
pacing: setup
	@$(enter) tools/dev/pacing run

bench: build
	$(enter) cargo build $(quiet) --release -p bench
	@$(enter) tools/dev/hardening $(bin)/bench
	@$(enter) $(bin)/bench run --json $(build)/bench/figures.json \
		--html $(build)/bench/index.html $(BENCH)

# Runs the benchmark and packs its figures, even if some measurements have failed.
bench-archive:
	@rm -f $(build)/bench/figures.json
	-@$(MAKE) bench
	@tools/bench/archive

bench-keep: setup
	@$(enter) $(bin)/bench keep $(build)/bench/figures.json

lint: setup
	@tools/dev/check format lint

prose: setup
	@tools/dev/tidy/run prose

cycles: setup
	@tools/dev/tidy/run cycles

unit: setup
	@tools/dev/check unit

selftests: setup
	@tools/dev/check build selftests

fmt: setup
	$(enter) cargo fmt --all
	$(enter) rustfmt $$(git ls-files 'drivers/*.rs' 'rust/*.rs' 'samples/*.rs')

clean:
	rm -rf $(build)/target $(build)/target-fuzz $(build)/target-coverage $(build)/planted \
		$(build)/module $(build)/module-clippy $(build)/module-doc $(build)/provider \
		$(build)/logs $(build)/modules $(build)/cache $(build)/kverbs $(build)/bundle \
		$(build)/target-host $(build)/check

distclean:
	tools/dev/setup --remove
