// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Capture files in the classic pcap format with nanoseconds, whole frames, link type Ethernet.
//!
//! A separate thread writes the file: a slow disk must not delay the switch. If the disk can't keep
//! up, frames are left out of the file, and their number is logged.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::mem;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender, TrySendError};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use roce::frame::MAX_FRAME;
use rustix::fs::OFlags;
use sandbox::{Kind, Reserve};

/// Magic number of a file with nanoseconds, in the writer's byte order.
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
const LINKTYPE_ETHERNET: u32 = 1;

/// Length of the header of a file, in bytes. It is written before any frame.
pub const FILE_HEADER: u64 = 24;
/// Length of the header of a frame, in bytes.
const FRAME_HEADER: u64 = 16;

/// Size of a chunk, the unit of writes to the file, in bytes.
const CHUNK: usize = 1 << 18;
/// Maximum number of chunks that wait for the disk: 64 MiB.
const CHUNKS: usize = 256;
/// Maximum number of chunks that wait for the reader of the capture of one port: 8 MiB.
const PORT_CHUNKS: usize = 32;

/// Writes a capture file. Dropping the writer waits until the file is complete, except for a
/// capture by [`new_in`](Self::new_in): its reader may never read.
#[derive(Debug)]
pub struct PcapWriter {
    chunk: Vec<u8>,
    /// Number of frames in `chunk`.
    frames: u64,
    /// Number of frames that were left out of the file.
    missing: u64,
    /// Number of frames that were passed to the writing thread.
    passed: u64,
    full: Option<SyncSender<Vec<u8>>>,
    /// Written chunks, to be reused.
    empty: Receiver<Vec<u8>>,
    failed: Arc<AtomicBool>,
    /// The writing thread, if dropping this value waits for its end.
    thread: Option<JoinHandle<()>>,
}

/// The result of an ended capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// Number of frames that were captured.
    pub frames: u64,
    /// Number of frames that were left out, since the reader was too slow.
    pub left_out: u64,
}

impl PcapWriter {
    /// [Creates](create) the file and starts a capture.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::new(create(path)?)
    }

    /// Continues the capture to a file that another process has begun, after the last whole frame.
    /// Begins another one if there is no such file.
    ///
    /// # Errors
    ///
    /// The file is no regular file, or can't be read and written.
    pub fn resume(path: &Path) -> io::Result<Self> {
        let mut file = File::options();
        let flags = OFlags::NOFOLLOW.bits() as i32;
        let file = file.read(true).write(true).custom_flags(flags);
        let mut file = match file.open(path) {
            // Somebody has moved it away.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::create(path),
            file => file?,
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let end = end_of_frames(&file)?;
        file.set_len(end)?;
        file.seek(SeekFrom::Start(end))?;
        match end {
            0 => Self::new(file),
            _ => Self::beginning_with(&[], file),
        }
    }

    /// Starts a capture to `out`, beginning with the file header.
    pub fn new(out: impl Write + Send + 'static) -> io::Result<Self> {
        Self::beginning_with(&file_header(), out)
    }

    fn beginning_with(start: &[u8], out: impl Write + Send + 'static) -> io::Result<Self> {
        let (mut pcap, work) = Self::parts(out, CHUNKS, start);
        pcap.thread = Some(sandbox::spawn(Kind::Capture, "pcap", work)?);
        Ok(pcap)
    }

    /// Starts a capture that a thread of `threads` writes to `out`, whole frames by each write.
    /// Dropping the writer does not wait, because the reader of `out` may never read. If another
    /// process has `begun` the capture, `out` has its header and so many frames.
    ///
    /// # Errors
    ///
    /// All threads write other captures.
    pub fn new_in(
        threads: &Reserve,
        name: &str,
        out: impl Write + Send + 'static,
        begun: Option<u64>,
    ) -> io::Result<Self> {
        let start = if begun.is_some() {
            Vec::new()
        } else {
            file_header()
        };
        let (mut pcap, work) = Self::parts(out, PORT_CHUNKS, &start);
        pcap.passed = begun.unwrap_or(0);
        threads.run(format!("{name}-pcap"), work)?;
        Ok(pcap)
    }

    /// A capture that begins with `start`, and the function that its thread must run.
    fn parts(
        out: impl Write + Send + 'static,
        chunks: usize,
        start: &[u8],
    ) -> (Self, impl FnOnce() + Send + 'static) {
        let (full, to_write) = sync_channel(chunks);
        let (written, empty) = sync_channel(chunks);
        let failed = Arc::new(AtomicBool::new(false));
        let flag = failed.clone();
        let work = move || run(out, &to_write, &written, &flag);
        let mut chunk = Vec::with_capacity(CHUNK + MAX_FRAME);
        chunk.extend(start);
        let mut pcap = Self {
            chunk,
            frames: 0,
            missing: 0,
            passed: 0,
            full: Some(full),
            empty,
            failed,
            thread: None,
        };
        // The file is a valid capture file from the start.
        pcap.flush();
        (pcap, work)
    }

    /// Ends a capture. Waiting chunks are still written, if the reader reads them.
    pub fn finish(mut self) -> Captured {
        self.flush();
        Captured {
            frames: self.passed,
            left_out: mem::take(&mut self.missing),
        }
    }

    /// Adds a frame. Never waits.
    pub fn write(&mut self, frame: &[u8], time: SystemTime) {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        // A frame is far shorter than 4 GiB. The format's time in seconds overflows in 2106.
        let len = frame.len() as u32;
        for word in [since.as_secs() as u32, since.subsec_nanos(), len, len] {
            self.chunk.extend(word.to_le_bytes());
        }
        self.chunk.extend(frame);
        self.frames += 1;
        if self.chunk.len() >= CHUNK {
            self.flush();
        }
    }

    /// Passes the frames collected so far to the writing thread.
    pub fn flush(&mut self) {
        let Some(full) = &self.full else { return };
        if self.chunk.is_empty() {
            return;
        }
        let frames = mem::take(&mut self.frames);
        let next = self.empty.try_recv().unwrap_or_default();
        match full.try_send(mem::replace(&mut self.chunk, next)) {
            Ok(()) => self.passed += frames,
            Err(TrySendError::Full(chunk)) => {
                if self.missing == 0 {
                    tracing::warn!("the reader is too slow for the capture: frames are left out");
                }
                self.missing += frames;
                self.chunk = chunk;
            }
            // The writing thread has failed and logged its error.
            Err(TrySendError::Disconnected(chunk)) => self.chunk = chunk,
        }
        self.chunk.clear();
    }

    /// Whether the file could not be written.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

/// Creates a capture file, which must not exist. Only its owner may read it: it holds the frames of
/// virtual machines.
pub fn create(path: &Path) -> io::Result<File> {
    let file = File::options()
        .write(true)
        // This does not follow symbolic links either.
        .create_new(true)
        .mode(0o600)
        .open(path);
    file.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            io::Error::new(error.kind(), "it exists; remove it or choose another name")
        }
        _ => error,
    })
}

/// The header of a file.
fn file_header() -> Vec<u8> {
    let mut header = MAGIC_NANOSECONDS.to_le_bytes().to_vec();
    for half in VERSION {
        header.extend(half.to_le_bytes());
    }
    // Time zone and accuracy are always zero.
    for word in [0, 0, MAX_FRAME as u32, LINKTYPE_ETHERNET] {
        header.extend(word.to_le_bytes());
    }
    header
}

/// Number of frames in a part of a capture file that begins with a frame.
pub fn frames(mut part: &[u8]) -> u64 {
    let mut count = 0;
    while let Some((header, rest)) = part.split_at_checked(FRAME_HEADER as usize) {
        let captured = captured(header.try_into().unwrap_or_default());
        part = rest.get(captured as usize..).unwrap_or_default();
        count += 1;
    }
    count
}

/// Number of bytes of a frame that follow its header.
fn captured(header: [u8; FRAME_HEADER as usize]) -> u32 {
    let [.., a, b, c, d, _, _, _, _] = header;
    u32::from_le_bytes([a, b, c, d])
}

/// The end of the last whole frame of a capture file, or 0 if the file's header is not whole.
fn end_of_frames(file: &File) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let mut reader = BufReader::new(file);
    let mut end = FILE_HEADER;
    if len < end {
        return Ok(0);
    }
    reader.seek_relative(FILE_HEADER as i64)?;
    let mut header = [0; FRAME_HEADER as usize];
    while len - end >= FRAME_HEADER {
        reader.read_exact(&mut header)?;
        let captured = captured(header);
        let next = end + FRAME_HEADER + u64::from(captured);
        if next > len {
            break;
        }
        reader.seek_relative(captured.into())?;
        end = next;
    }
    Ok(end)
}

impl Drop for PcapWriter {
    fn drop(&mut self) {
        let full = self.full.take();
        if let Some(full) = full.filter(|_| self.thread.is_some()) {
            // Waits for room in the queue of chunks, so that no frame is left out.
            let _ = full.send(mem::take(&mut self.chunk));
        }
        if let Some(thread) = self.thread.take() {
            // The thread ends, since the channel is closed. A panic has already been reported.
            let _ = thread.join();
        }
        if self.missing > 0 {
            let missing = self.missing;
            tracing::warn!(
                "the capture is incomplete: its reader was too slow for {missing} frames"
            );
        }
    }
}

/// The body of the writing thread.
fn run(
    mut out: impl Write,
    to_write: &Receiver<Vec<u8>>,
    written: &SyncSender<Vec<u8>>,
    failed: &AtomicBool,
) {
    for mut chunk in to_write {
        if let Err(error) = out.write_all(&chunk) {
            tracing::error!("the capture is stopped: {error}");
            failed.store(true, Ordering::Relaxed);
            return;
        }
        chunk.clear();
        // The channel has room for all chunks.
        let _ = written.try_send(chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{channel, Sender};
    use std::time::Duration;

    /// A slow file: it passes on written bytes when the test allows it.
    struct Slow(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(io::Error::other)?;
            self.1.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (Slow, Sender<()>, Receiver<Vec<u8>>) {
        let ((go, may), (out, file)) = (channel(), channel());
        (Slow(may, out), go, file)
    }

    #[test]
    fn bytes_of_a_file() {
        let (disk, go, file) = slow();
        let mut pcap = PcapWriter::new(disk).unwrap();
        let time = UNIX_EPOCH + Duration::new(0x1234, 0x5678);
        pcap.write(b"frame", time);
        for _ in 0..9 {
            go.send(()).unwrap();
        }
        drop(pcap);
        let file: Vec<u8> = file.iter().flatten().collect();
        #[rustfmt::skip]
        assert_eq!(file, [
            0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x24, 0, 0,
            1, 0, 0, 0, 0x34, 0x12, 0, 0, 0x78, 0x56, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0,
            b'f', b'r', b'a', b'm', b'e',
        ]);
    }

    #[test]
    fn a_disk_that_is_too_slow_holds_nobody_up() {
        let (disk, go, file) = slow();
        let mut pcap = PcapWriter::new(disk).unwrap();
        let frame = [0; MAX_FRAME];
        let frames = 2 * CHUNKS * CHUNK / MAX_FRAME;
        for _ in 0..frames {
            pcap.write(&frame, UNIX_EPOCH);
        }
        let missing = pcap.missing as usize;
        assert!(missing > frames / 3, "{missing} of {frames}");
        for _ in 0..2 * CHUNKS {
            go.send(()).unwrap();
        }
        drop(pcap);
        // All other frames are in the file, and each is complete.
        let len: usize = file.iter().map(|chunk| chunk.len()).sum();
        assert_eq!(len, 24 + (frames - missing) * (16 + MAX_FRAME));
    }

    /// A file is continued wherever the process that wrote it has died.
    #[test]
    fn a_capture_goes_on_after_its_last_whole_frame() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.pcap");
        let frame = |number: u8| vec![number; 60 + usize::from(number)];
        let mut pcap = PcapWriter::create(&path).unwrap();
        (0..3).for_each(|number| pcap.write(&frame(number), UNIX_EPOCH));
        drop(pcap);
        let whole = std::fs::read(&path).unwrap();
        let ends = (0..=3).map(|frames| 24 + (0..frames).map(|frame| 76 + frame).sum::<usize>());
        let ends: Vec<_> = ends.collect();
        assert_eq!(ends[3], whole.len());
        for len in 0..=whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            let mut pcap = PcapWriter::resume(&path).unwrap();
            pcap.write(&frame(9), UNIX_EPOCH);
            drop(pcap);
            let kept = ends.iter().rfind(|end| **end <= len).unwrap_or(&24);
            let file = std::fs::read(&path).unwrap();
            assert_eq!(file[..*kept], whole[..*kept], "{len}");
            assert_eq!(file[*kept + 16..], frame(9), "{len}");
        }
        let link = dir.path().join("link.pcap");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(PcapWriter::resume(&link).is_err());
    }

    #[test]
    fn a_file_that_exists_is_left_alone() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.pcap");
        drop(PcapWriter::create(&path).unwrap());
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.mode() & 0o777, meta.len()), (0o600, 24));
        let link = dir.path().join("link.pcap");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).unwrap();
        for path in [&path, &link] {
            let error = PcapWriter::create(path).unwrap_err();
            assert!(error.to_string().contains("it exists"), "{error}");
        }
        assert!(!dir.path().join("elsewhere").exists());
    }
}
