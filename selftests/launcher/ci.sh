#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The recipes of Documentation/ci. The steps of each recipe run on the archive of `make bundle`, as
# an ordinary user with the environment of a CI runner.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

ci=$top/Documentation/ci

# Prints the text blocks of a key in a YAML file, each followed by a NUL byte: blocks KEY FILE
blocks() {
	awk -v key="$1" '
		function indent(line) { match(line, /^ */); return RLENGTH }
		inside && (NF == 0 || indent($0) > from) {
			if (!depth) depth = indent($0)
			print substr($0, depth + 1)
			next
		}
		inside { printf "%c", 0; inside = 0 }
		$0 ~ "^ *(- )?" key " *[|]$" { inside = 1; from = indent($0); depth = 0 }
		END { if (inside) printf "%c", 0 }' "$2"
}

# Runs a command in a new directory of the user.
in_project() {
	rm -rf "$work/dir/project"
	mkdir -p "$work/dir/project" "$work/dir/home" "$work/dir/temp"
	chmod 777 "$work"/dir/{project,home}
	chmod 1777 "$work/dir/temp"
	cd "$work/dir/project"
	"${as_user[@]}" env -i PATH=/usr/bin:/bin HOME="$work/dir/home" TMPDIR="$TMPDIR" \
		ARCHIVE="$archive" SHA256="$sum" "$@" </dev/null >"$work/out" 2>"$work/err"
}

# Checks that both VMs have an active port, and that the files for CI exist.
is_fine() {
	(($(grep -c PORT_ACTIVE "$work/out") == 2))
	grep -q '<testsuite' virtio-rdma.xml
	[[ -s virtio-rdma-logs/vm2.dmesg ]]
	nothing_left
}

test_plain() {
	in_project OPTIONS=--tools TEST='ibv_devinfo; on 2 ibv_devinfo' "$ci/plain.sh"
	is_fine
}

test_github() {
	local steps script command
	mapfile -d '' steps < <(blocks run: "$ci/action.yml")
	((${#steps[@]} == 3))
	script=$(printf '(\n%s)\n' "${steps[@]}")
	mapfile -d '' command < <(blocks run: "$ci/github.yml")
	in_project OPTIONS=--tools COMMAND="${command[0]}" RUNNER_TEMP="$work/dir/temp" \
		GITHUB_ACTION_PATH="$ci" bash --noprofile --norc -eo pipefail -c "$script"
	is_fine
}

test_gitlab() {
	local script
	mapfile -d '' script < <(blocks - "$ci/gitlab.yml")
	((${#script[@]} == 1))
	in_project bash -eo pipefail -c "${script[0]}"
	is_fine
}

# Unpacks the bundle once, and puts it into PATH of the next commands.
with_bundle() {
	in_project "$ci/unpack" "$archive" "$sum" "$work/dir/home/bundle"
	in_project PATH="$work/dir/home/bundle/bin:$1:/usr/bin:/bin" "${@:2}"
}

# A crate's test program finds the device. Its result is that of `cargo test`.
test_cargo() {
	local cargo toolchain
	cargo=$(type -P cargo) || skip "no cargo"
	toolchain=$(dirname "$(rustup which cargo 2>/dev/null || echo "$cargo")")
	"${as_user[@]}" "$toolchain/cargo" --version >/dev/null || skip "no cargo for ordinary users"
	# shellcheck disable=SC2016 # of the user's shell
	with_bundle "$toolchain" sh -ec '
		mkdir -p src .cargo
		cp "$0" .cargo/config.toml
		printf "[package]\nname = \"example\"\nedition = \"2021\"\n" >Cargo.toml
		echo "#[test] fn device() {
			assert!(std::path::Path::new(\"/sys/class/infiniband/virtio_rdma0\").exists());
		}
		#[test] #[ignore] fn wrong() { panic!() }" >src/lib.rs
		cargo test --offline --lib
		! cargo test --offline --lib -- --ignored' "$ci/cargo.toml"
	grep -q '^test device ... ok' "$work/out"
	grep -q '^test wrong ... FAILED' "$work/out"
	nothing_left
}

test_ctest() {
	type -P ctest >/dev/null || skip "no ctest"
	# shellcheck disable=SC2016
	with_bundle /usr/bin sh -ec '
		cp "$0" .
		printf "#!/bin/sh\nibv_devinfo && on 2 ibv_devinfo\n" >rdma-test
		chmod 755 rdma-test
		cmake -B build .
		ctest --test-dir build --output-on-failure' "$ci/CMakeLists.txt"
	grep -q '100% tests passed' "$work/out"
	nothing_left
}

test_wrong_sum() {
	local status=0
	in_project "$ci/unpack" "$archive" "${sum//[0-9]/0}" "$work/dir/home/wrong" || status=$?
	((status != 0))
	[[ ! -e $work/dir/home/wrong ]]
}

archives=("$top"/build/virtio-rdma-*-x86_64.tar.xz)
archive=${archives[0]}
[[ -f $archive ]] || fail 'no archive: run "make bundle"'
sum=$(sha256sum "$archive")
sum=${sum%% *}
run_tests test_plain test_github test_gitlab test_cargo test_ctest test_wrong_sum
