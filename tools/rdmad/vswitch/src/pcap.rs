// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Capture files in the classic pcap format with nanoseconds, whole frames, link type Ethernet.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use roce::frame::MAX_FRAME;

/// Magic number of a file with nanoseconds, in the writer's byte order.
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
const LINKTYPE_ETHERNET: u32 = 1;

/// Writes a capture file. Dropping it writes what is buffered; [`flush`](Self::flush) reports errors.
#[derive(Debug)]
pub struct PcapWriter<W: Write = File> {
    out: BufWriter<W>,
}

impl PcapWriter {
    /// Creates the file, or empties it.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::new(File::create(path)?)
    }
}

impl<W: Write> PcapWriter<W> {
    /// Starts a capture with its file header.
    pub fn new(out: W) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(1 << 18, out);
        out.write_all(&MAGIC_NANOSECONDS.to_le_bytes())?;
        for half in VERSION {
            out.write_all(&half.to_le_bytes())?;
        }
        // Time zone and accuracy are always zero.
        for word in [0, 0, MAX_FRAME as u32, LINKTYPE_ETHERNET] {
            out.write_all(&word.to_le_bytes())?;
        }
        Ok(Self { out })
    }

    /// Adds a frame.
    pub fn write(&mut self, frame: &[u8], time: SystemTime) -> io::Result<()> {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        // Frames are far shorter than 4 GiB; the format ends in 2106.
        let len = frame.len() as u32;
        for word in [since.as_secs() as u32, since.subsec_nanos(), len, len] {
            self.out.write_all(&word.to_le_bytes())?;
        }
        self.out.write_all(frame)
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn bytes_of_a_file() {
        let mut file = Vec::new();
        let mut pcap = PcapWriter::new(&mut file).unwrap();
        let time = UNIX_EPOCH + Duration::new(0x1234, 0x5678);
        pcap.write(b"frame", time).unwrap();
        pcap.flush().unwrap();
        drop(pcap);
        #[rustfmt::skip]
        assert_eq!(file, [
            0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x24, 0, 0, 1, 0, 0, 0,
            0x34, 0x12, 0, 0, 0x78, 0x56, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0, b'f', b'r', b'a', b'm', b'e',
        ]);
    }
}
