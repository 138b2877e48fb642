// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A broker that replaces files does so in its folder, and can do little else.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::thread;

use rustix::fs::{openat, renameat, Mode, OFlags};
use sandbox::confine_broker;

#[test]
fn a_broker_replaces_files_in_its_folder_alone() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let has_landlock = fs::read_to_string("/sys/kernel/security/lsm")
        .is_ok_and(|modules| modules.contains("landlock"));
    fs::write(dir.path().join("state"), "old").unwrap();
    fs::write(other.path().join("file"), "mine").unwrap();
    let folder = File::open(dir.path()).unwrap();
    let peer = UnixDatagram::bind(other.path().join("peer")).unwrap();
    let socket = UnixDatagram::unbound().unwrap();
    let (path, foreign) = (dir.path().to_owned(), other.path().to_owned());
    // In a separate thread, because the confinement lasts until the confined thread ends.
    let confined = thread::spawn(move || {
        confine_broker([], &[folder.as_fd()]).unwrap();
        let create = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let open = |path: &std::path::Path, flags| {
            let file = openat(&folder, path, flags, Mode::RUSR | Mode::WUSR);
            file.map(File::from).map_err(io::Error::from)
        };
        let mut new = open("new".as_ref(), create).unwrap();
        new.write_all(b"new").unwrap();
        rustix::fs::fsync(&new).unwrap();
        renameat(&folder, "new", &folder, "state").unwrap();
        for flags in [
            OFlags::RDONLY,
            OFlags::WRONLY,
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
            // Landlock alone refuses to truncate a file, but not to open it.
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC,
            OFlags::WRONLY | OFlags::CREATE,
        ] {
            let error = open("state".as_ref(), flags).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{flags:?}");
        }
        // Files for reading, new or not. The last mode has the bits of reading and of writing.
        for mode in [OFlags::RDONLY, OFlags::RDWR, OFlags::RWMODE] {
            let flags = mode | OFlags::CREATE | OFlags::EXCL;
            let error = open("further".as_ref(), flags).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{flags:?}");
        }
        let error = open(&path.join("state"), create).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(socket.connect(foreign.join("peer")).is_err());
        if has_landlock {
            assert!(open(&foreign.join("new"), create).is_err());
            assert!(renameat(&folder, "state", &folder, foreign.join("file")).is_err());
            assert!(renameat(&folder, foreign.join("file"), &folder, "file").is_err());
        }
    });
    confined.join().unwrap();
    drop(peer);
    assert_eq!(fs::read(dir.path().join("state")).unwrap(), b"new");
    assert_eq!(fs::read(other.path().join("file")).unwrap(), b"mine");
}
