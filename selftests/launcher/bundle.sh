#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The archive of `make bundle`: its checksums, its size, its documents, its version, that it works
# in a read-only directory, and that the same directory gives the same bytes.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Unpacks the archive as a user does. In other tests, "$bundle" is a copy of the directory.
unpack() {
	local archives=("$top"/build/virtio-rdma-*-x86_64.tar.xz)
	[[ -f ${archives[0]} ]] || fail 'no archive: run "make bundle"'
	tar -C "$work/dir" -xf "${archives[0]}"
	local unpacked=("$work"/dir/virtio-rdma-*)
	bundle=${unpacked[0]}
}

test_archive() {
	(cd "$top/build" && sha256sum --check --quiet -- *-x86_64.tar.xz.sha256)
	local file
	for file in "$top"/build/virtio-rdma-*-x86_64.tar.xz; do
		(($(stat -c %s "$file") < 200 << 20))
	done
	unpack
	(cd "$bundle" && sha256sum --check --quiet SHA256SUMS)
	# SHA256SUMS has a line for each file.
	diff <(cd "$bundle" && find . -type f ! -name SHA256SUMS | sort) \
		<(sed 's/^[^ ]*  //' "$bundle/SHA256SUMS" | sort)
}

test_documents() {
	local name
	python3 -c '
import json, pathlib, sys
share = pathlib.Path(sys.argv[1]) / "share"
document = json.loads((share / "virtio-rdma.spdx.json").read_text())
parts = document["packages"]
names = {part["SPDXID"] for part in parts}
assert len(names) == len(parts) > 50
for relation in document["relationships"]:
    assert relation["relatedSpdxElement"] in names, relation
sources = set((share / "sources.list").read_text().splitlines())
for part in parts:
    kind = part["SPDXID"].split("-")[1]
    if kind == "deb":
        assert (share / "licenses" / part["name"]).stat().st_size > 100, part
        assert part["sourceInfo"].removeprefix("Debian source package ") in sources, part
    if kind == "crate":
        assert part["licenseDeclared"] != "NOASSERTION", part
        assert list((share / "licenses").glob(part["name"] + "-*")), part
' "$bundle"
	for name in glibc linux qemu rdma-core rust-virtiofsd; do
		grep -q "^$name " "$bundle/share/SOURCES" || fail "no source of $name"
	done
}

# The program, the manual and the text for users have the version of the archive's name.
test_version() {
	unpack
	local version=${bundle##*/virtio-rdma-}
	version=${version%-x86_64}
	[[ $(virtio_rdma --version) == "virtio-rdma $version" ]]
	grep -q "^\.TH VIRTIO-RDMA 1 .*\"virtio-rdma $version\"" "$bundle/share/man/man1/virtio-rdma.1"
	[[ $(head -n 1 "$bundle/README") == "virtio-rdma $version" ]]
}

test_read_only() {
	mkdir -p "$work/a place"
	unpack
	mv "$bundle" "$work/a place/"
	bundle="$work/a place/${bundle##*/}"
	chmod -R a-w "$bundle"
	virtio_rdma check >"$work/out"
	grep -q '^ok   memory' "$work/out"
	virtio_rdma run --vms 1 --tools -- ibv_devinfo </dev/null >"$work/out" 2>"$work/err"
	grep -q PORT_ACTIVE "$work/out"
	nothing_left
	# The files must be writable for their removal.
	chmod -R u+w "$bundle"
}

# The archive's bytes depend neither on dates, nor on the order of files, nor on their owner.
test_same_bytes() {
	mkdir "$work/1" "$work/2"
	touch "$work/1/a" "$work/1/b"
	touch -d 2001-01-01 "$work/2/b" "$work/2/a"
	chmod 666 "$work/2/a"
	"$top/tools/launcher/bundle" --archive "$work/1" "$work/x.tar.xz"
	mv "$work/x.tar.xz" "$work/first"
	"$top/tools/launcher/bundle" --archive "$work/2" "$work/x.tar.xz"
	cmp "$work/first" "$work/x.tar.xz"
}

run_tests test_archive test_documents test_version test_read_only test_same_bytes
