// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The guests' kernel without its compression: QEMU starts an ELF image with a PVH entry directly,
//! and an emulated processor would take seconds to decompress it in each VM.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader};
use object::LittleEndian;
use ruzstd::StreamingDecoder;

use crate::cache::remove_oldest;

/// Offsets in a bzImage (Documentation/arch/x86/boot.rst of Linux).
const SETUP_SECTS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const VERSION: usize = 0x206;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
/// The first version of the boot protocol with a payload.
const HAS_PAYLOAD: u16 = 0x208;
/// The length of a sector in bytes.
const SECTOR: usize = 512;
/// The name and the type of the note that has the entry (XEN_ELFNOTE_PHYS32_ENTRY of Linux).
const NOTE_NAME: &[u8] = b"Xen";
const PHYS32_ENTRY: u32 = 18;
/// Maximum length of an unpacked kernel in bytes.
const LONGEST: u64 = 1 << 30;
/// Number of unpacked kernels that later runs find.
const KEPT: usize = 4;

/// Unpacks a kernel into the directory `cache` for this run and later ones, or into the directory
/// `run` if that fails. Returns the kernel that QEMU is to start: the packed one if its compression
/// is not zstd, if it has no PVH entry, or if the directories have no room.
pub fn unpacked(image: &Path, cache: Option<&Path>, run: &Path) -> PathBuf {
    if let Some(kernel) = cache.and_then(|cache| cached(image, cache, run).ok()) {
        return kernel;
    }
    let unpacked = run.join("vmlinux");
    match unpack(image, &unpacked) {
        Ok(true) => unpacked,
        _ => {
            // It may not exist.
            let _ = fs::remove_file(unpacked);
            image.to_path_buf()
        }
    }
}

/// The unpacked kernel in a cache. Its name has the identity of the image, so that a changed image
/// is unpacked anew. The name of the directory `run` is unique.
fn cached(image: &Path, cache: &Path, run: &Path) -> io::Result<PathBuf> {
    let of = fs::metadata(image)?;
    let (inode, time) = ((of.dev(), of.ino()), (of.mtime(), of.mtime_nsec()));
    let kernel = cache.join(format!(
        "vmlinux-{:x}-{:x}-{}-{}.{:09}",
        inode.0,
        inode.1,
        of.len(),
        time.0,
        time.1
    ));
    if kernel.is_file() {
        return Ok(kernel);
    }
    fs::create_dir_all(cache)?;
    let partial = cache.join(run.file_name().unwrap_or_default());
    let unpacked = unpack(image, &partial).and_then(|starts| match starts {
        true => fs::rename(&partial, &kernel),
        false => Err(io::ErrorKind::InvalidData.into()),
    });
    if unpacked.is_err() {
        let _ = fs::remove_file(&partial);
    }
    remove_oldest(cache, KEPT)?;
    unpacked.map(|()| kernel)
}

/// Writes the unpacked kernel to a file, if it has a PVH entry. Returns whether it has one.
fn unpack(image: &Path, to: &Path) -> io::Result<bool> {
    let image = fs::read(image)?;
    let Some(payload) = payload(&image) else {
        return Ok(false);
    };
    let mut kernel = Vec::new();
    let decoder = StreamingDecoder::new(payload).map_err(io::Error::other)?;
    decoder.take(LONGEST).read_to_end(&mut kernel)?;
    let starts = has_pvh_entry(&kernel);
    if starts {
        fs::write(to, kernel)?;
    }
    Ok(starts)
}

/// The compressed kernel in a bzImage, which ends with 4 bytes of its unpacked length.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let bytes = |at| image.get(at..at + 4)?.first_chunk().copied();
    let version = u16::from_le_bytes(*image.get(VERSION..)?.first_chunk()?);
    if bytes(MAGIC)? != *b"HdrS" || version < HAS_PAYLOAD {
        return None;
    }
    let sectors = match *image.get(SETUP_SECTS)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let number = |at| usize::try_from(u32::from_le_bytes(bytes(at)?)).ok();
    let first = (sectors + 1) * SECTOR + number(PAYLOAD_OFFSET)?;
    image.get(first..first + number(PAYLOAD_LENGTH)?.checked_sub(4)?)
}

fn has_pvh_entry(kernel: &[u8]) -> bool {
    let find = || -> object::Result<bool> {
        let header = FileHeader64::<LittleEndian>::parse(kernel)?;
        let endian = header.endian()?;
        for segment in header.program_headers(endian, kernel)? {
            let Some(mut notes) = segment.notes(endian, kernel)? else {
                continue;
            };
            while let Some(note) = notes.next()? {
                if note.name() == NOTE_NAME && note.n_type(endian) == PHYS32_ENTRY {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    };
    find().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage with one sector of setup code and this payload.
    fn packed(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 2 * SECTOR];
        image[SETUP_SECTS] = 1;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[VERSION..VERSION + 2].copy_from_slice(&0x20f_u16.to_le_bytes());
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&7_u32.to_le_bytes());
        let length = u32::try_from(payload.len() + 4).unwrap();
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image.extend([&[0xee; 7], payload, &[9; 4]].concat());
        image
    }

    #[test]
    fn a_payload_is_found_by_its_header() {
        let image = packed(b"kernel");
        assert_eq!(payload(&image), Some(&b"kernel"[..]));
        // Cut off anywhere, there is none.
        for length in 0..image.len() - 4 {
            assert_eq!(payload(&image[..length]), None, "{length}");
        }
        for (at, value) in [(MAGIC, b'h'), (VERSION, 7)] {
            let mut image = image.clone();
            image[at] = value;
            assert_eq!(payload(&image), None, "{at}");
        }
    }

    #[test]
    fn the_packed_kernel_is_started_if_it_cannot_be_unpacked() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("vmlinuz");
        for content in [packed(b"not zstd"), b"\x7fELF".to_vec()] {
            fs::write(&image, content).unwrap();
            let cache = dir.path().join("cache");
            assert_eq!(unpacked(&image, Some(&cache), dir.path()), image);
            assert!(!dir.path().join("vmlinux").exists());
            assert_eq!(fs::read_dir(cache).unwrap().count(), 0);
        }
        let none = dir.path().join("none");
        assert_eq!(unpacked(&none, None, dir.path()), none);
    }

    #[test]
    fn a_kernel_in_the_cache_is_that_of_the_image() {
        let dir = tempfile::tempdir().unwrap();
        let (image, cache) = (dir.path().join("vmlinuz"), dir.path().join("cache"));
        fs::create_dir(&cache).unwrap();
        fs::write(&image, packed(b"not zstd")).unwrap();
        let of = fs::metadata(&image).unwrap();
        let identity = format!("{:x}-{:x}-{}", of.dev(), of.ino(), of.len());
        let time = format!("{}.{:09}", of.mtime(), of.mtime_nsec());
        let kernel = cache.join(format!("vmlinux-{identity}-{time}"));
        fs::write(&kernel, "").unwrap();
        assert_eq!(unpacked(&image, Some(&cache), dir.path()), kernel);
        fs::write(&image, packed(b"another")).unwrap();
        assert_eq!(unpacked(&image, Some(&cache), dir.path()), image);
    }
}
