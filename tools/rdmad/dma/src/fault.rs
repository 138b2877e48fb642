// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The handler of SIGBUS, for guest memory whose pages the kernel can't provide.
//!
//! The kernel sends SIGBUS to a thread that accesses a missing page of a file: the page has a
//! memory error, the pool of huge pages is empty, the commit limit is reached, or the file was
//! truncated. The handler maps a spare page in the place of the missing page and records the
//! [`Loss`]; the access then continues. Other accesses cost nothing, since the handler runs only
//! when an access fails. The VM's device has to be stopped: the spare page does not hold the
//! guest's data.
//!
//! An access to a page that the file does not have yet raises SIGBUS too, if the pages that this
//! process allocates are counted (`fills.rs`). Such a page is allocated, and nothing is lost.
//!
//! A spare page splits the mapping of its region, and the kernel limits the mappings of a process.
//! So only a few spare pages are mapped one by one. The next loss replaces the whole region by a
//! single mapping of new memory, in which every page exists.
//!
//! A fault outside of guest memory is passed to the previous handler, which Rust's runtime has
//! installed. The previous handler restores the default action, so the signal ends the process.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{fence, AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock};

use parking_lot::Mutex;
use rustix::event::{eventfd, EventfdFlags};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::MmapRegion;

use crate::fills::{self, Counting, Filled};
use crate::{advice, MapError, PAGE_SIZE};

/// Maximum number of regions that all VMs of a process map together.
pub(crate) const MAX_GUARDED: usize = 1 << 14;
/// Maximum number of pages of a region that spare pages replace one by one.
const MAX_SPARE_PAGES: usize = 16;
/// The same for the regions of all VMs together. With [`MAX_GUARDED`] regions, the mappings stay
/// below half of the kernel's default limit (`vm.max_map_count`).
const MAX_SPARE_PAGES_OF_ALL: usize = 1 << 11;
/// Number of spare pages that are mapped now.
static SPARE_PAGES: AtomicUsize = AtomicUsize::new(0);
/// Number of accesses that find a page missing although it exists, after which the page counts as
/// lost. More than the threads of a process that may access the page at the same time.
const MAX_REPEATED: usize = 1 << 12;
/// The address in a [`Loss`] if no memory is lost. The address of a page is a multiple of the page
/// size, so it differs from this value.
const NONE: u64 = u64::MAX;

/// Whether memory of a VM is lost, and where.
#[derive(Debug)]
pub(crate) struct Loss {
    /// DMA address of the page that was lost first, or [`NONE`].
    at: AtomicU64,
    /// Eventfd that each loss makes readable.
    event: OnceLock<Arc<OwnedFd>>,
}

impl Default for Loss {
    fn default() -> Self {
        Self {
            at: AtomicU64::new(NONE),
            event: OnceLock::new(),
        }
    }
}

impl Loss {
    /// DMA address of the page that was lost first.
    #[inline]
    pub(crate) fn address(&self) -> Option<u64> {
        Some(self.at.load(Ordering::Relaxed)).filter(|&at| at != NONE)
    }

    /// An eventfd that becomes readable whenever memory is lost.
    pub(crate) fn event(&self) -> io::Result<Arc<OwnedFd>> {
        if self.event.get().is_none() {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // Fails if another thread has set an eventfd in the meantime, which is then used.
            let _ = self.event.set(Arc::new(fd));
            if self.address().is_some() {
                self.raise();
            }
        }
        self.event
            .get()
            .cloned()
            .ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// Records that no memory is lost any more.
    pub(crate) fn clear(&self) {
        self.at.store(NONE, Ordering::Relaxed);
        if let Some(event) = self.event.get() {
            // The read fails only if no loss raised the event.
            let _ = rustix::io::read(&**event, &mut [0; 8]);
        }
    }

    /// Records the loss of the page at `iova`. Called by the signal handler.
    fn note(&self, iova: u64) {
        // Only the first lost page is recorded.
        let _ = self
            .at
            .compare_exchange(NONE, iova, Ordering::Relaxed, Ordering::Relaxed);
        self.raise();
    }

    fn raise(&self) {
        if let Some(event) = self.event.get() {
            // The write fails only if the counter is full, and then the eventfd is readable.
            let _ = rustix::io::write(&**event, &1u64.to_ne_bytes());
        }
    }
}

/// Properties of a mapping that the signal handler needs.
#[derive(Debug)]
struct Watch {
    /// First address of the mapping, and the address after its last byte; multiples of `page`.
    start: usize,
    end: usize,
    /// Page size of the mapping in bytes.
    page: usize,
    /// One page of shared memory. It counts towards the commit limit from its mapping on, so the
    /// page itself can't be missing.
    spare: MmapRegion,
    /// DMA address of `start`. If the device sees only a later part of the mapping, this address
    /// may wrap below 0.
    iova: u64,
    loss: Arc<Loss>,
    /// Number of spare pages that the handler has mapped one by one.
    spare_pages: AtomicUsize,
    /// Whether new memory has replaced the whole mapping.
    is_replaced: AtomicBool,
    counting: Counting,
    /// Number of bytes of pages that this process has allocated in the file.
    filled: AtomicU64,
    /// Page that was to be allocated last, although it exists, and how often in succession.
    repeated: (AtomicUsize, AtomicUsize),
}

/// A mapping for which the handler is responsible, and the part of it that a device sees.
#[derive(Debug)]
pub(crate) struct GuardedMapping {
    part: MmapRegion,
    slot: usize,
    // The slot holds the address of this box.
    watch: Box<Watch>,
    // Unmapped after `Drop` has emptied the slot.
    whole: MmapRegion,
}

impl GuardedMapping {
    /// Watches the mapping `whole`, whose pages have `page` bytes. The device sees `len` bytes of
    /// `whole`, from byte `lead` on, at DMA address `iova`. These bytes must lie inside `whole`.
    pub(crate) fn new(
        whole: MmapRegion,
        page: usize,
        (iova, lead, len): (u64, usize, usize),
        loss: Arc<Loss>,
    ) -> Result<Self, MapError> {
        install();
        assert!(lead.checked_add(len).is_some_and(|end| end <= whole.size()));
        // SAFETY: The part lies inside of `whole`, as was checked. `whole` lives as long as the
        // part, in the same structure.
        let part = unsafe {
            MmapRegion::build_raw(whole.as_ptr().add(lead), len, whole.prot(), whole.flags())?
        };
        let spare = MmapRegionBuilder::new(page)
            .with_mmap_prot((ProtFlags::READ | ProtFlags::WRITE).bits() as i32)
            .with_mmap_flags(MapFlags::SHARED.bits() as i32 | libc::MAP_ANONYMOUS)
            .build()?;
        advice::keep_out_of_dumps(&whole);
        advice::keep_out_of_dumps(&spare);
        let counting = fills::begin(&whole);
        let filled = match counting {
            Counting::Off | Counting::Pages => 0,
            // Any page may be allocated by this process.
            Counting::Refused => whole.size() as u64,
        };
        let start = whole.as_ptr() as usize;
        let watch = Box::new(Watch {
            start,
            end: start + whole.size(),
            page,
            spare,
            iova: iova.wrapping_sub(lead as u64),
            loss,
            spare_pages: AtomicUsize::new(0),
            is_replaced: AtomicBool::new(false),
            counting,
            filled: AtomicU64::new(filled),
            repeated: Default::default(),
        });
        let slot = FREE.lock().take().ok_or(MapError::TooManyOfAll)?;
        SLOTS[slot].set(watch.start, watch.end, ptr::from_ref(&*watch).cast_mut());
        Ok(Self {
            part,
            slot,
            watch,
            whole,
        })
    }

    /// First bytes of the pieces of `len` bytes, or of one page, of which the mapping consists.
    pub(crate) fn pieces(&self, len: usize) -> impl Iterator<Item = usize> {
        (0..self.whole.size()).step_by(len.max(self.watch.page))
    }

    /// Removes the page tables of the piece of `len` bytes, or of one page, at `at`.
    pub(crate) fn remove_piece(&self, at: usize, len: usize) {
        let len = len.max(self.watch.page).min(self.whole.size() - at);
        advice::remove_page_tables(&self.whole, at, len);
    }

    /// The part that the device sees.
    #[inline]
    pub(crate) fn part(&self) -> &MmapRegion {
        &self.part
    }

    /// Number of bytes of pages that this process has allocated in the file.
    pub(crate) fn filled(&self) -> u64 {
        self.watch.filled.load(Ordering::Relaxed)
    }

    /// Adds pages that this process has allocated in an earlier mapping of this part of the file.
    pub(crate) fn add_filled(&self, bytes: u64) {
        self.watch.filled.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Number of spare pages that were mapped one by one.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn spare_pages(&self) -> usize {
        self.watch.spare_pages.load(Ordering::Relaxed)
    }
}

impl Drop for GuardedMapping {
    fn drop(&mut self) {
        #[cfg(any(test, feature = "testing"))]
        crate::testing::note_unmapping(self.watch.iova);
        let spare_pages = self.watch.spare_pages.load(Ordering::Relaxed);
        SPARE_PAGES.fetch_sub(spare_pages, Ordering::Relaxed);
        let mut slots = FREE.lock();
        SLOTS[self.slot].set(0, 0, ptr::null_mut());
        slots.free.push(self.slot);
    }
}

/// A table entry for one mapping, which the handler reads without a lock.
///
/// # Invariants
///
/// While `version` is even, `watch` is null and the range empty, or `watch` lives and has this
/// range. Only the owner of the slot changes it.
struct WatchSlot {
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    watch: AtomicPtr<Watch>,
}

static SLOTS: [WatchSlot; MAX_GUARDED] = [const { WatchSlot::new() }; MAX_GUARDED];
/// Slot in which the last address of each range of [`HINT_RANGE`] bytes was found. Ranges share
/// hints, and a slot may have another mapping meanwhile, so a hint may be wrong.
static HINTS: [AtomicUsize; 1 << 10] = [const { AtomicUsize::new(0) }; 1 << 10];
const HINT_RANGE: usize = 32 << 20;
/// Index of the first slot that was never used.
static USED: AtomicUsize = AtomicUsize::new(0);
static FREE: Mutex<FreeSlots> = Mutex::new(FreeSlots { free: Vec::new() });

/// The slots that can be reused.
struct FreeSlots {
    /// Indices of the slots below [`USED`] that no mapping owns.
    free: Vec<usize>,
}

impl FreeSlots {
    fn take(&mut self) -> Option<usize> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = USED.load(Ordering::Relaxed);
        if slot == MAX_GUARDED {
            return None;
        }
        USED.store(slot + 1, Ordering::Release);
        Some(slot)
    }
}

impl WatchSlot {
    const fn new() -> Self {
        Self {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            watch: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Sets the range and the mapping. Only the owner of the slot may call this.
    fn set(&self, start: usize, end: usize, watch: *mut Watch) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // A reader that sees one of the values below sees the odd version too.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.watch.store(watch, Ordering::Relaxed);
        self.version.store(version + 2, Ordering::Release);
    }

    /// The slot's mapping, if it holds `address`. `None` also while the slot is being changed.
    fn find(&self, address: usize) -> Option<*const Watch> {
        let version = self.version.load(Ordering::Acquire);
        let range = self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed);
        let watch = self.watch.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_whole = version % 2 == 0 && self.version.load(Ordering::Relaxed) == version;
        (is_whole && range.contains(&address)).then_some(watch.cast_const())
    }
}

/// The handler that was installed before this one.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once.
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: All-zero is a value of this C structure: no handler, no flags, no signals.
        let mut previous: libc::sigaction = unsafe { mem::zeroed() };
        // SAFETY: The new action is null, so no action is set. `previous` is writable during the
        // call.
        let asked = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut previous) };
        // Set before the handler is installed, because the handler reads it.
        let _ = PREVIOUS.set(previous);
        // SAFETY: As above.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: The handler has the signature that SA_SIGINFO requires and is safe to run in a
        // signal's context, as its comment proves. `action` is readable during the call.
        let set = unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) };
        // `sigaction` fails only for bad arguments.
        assert!(asked == 0 && set == 0, "sigaction of SIGBUS");
    });
}

/// Handles SIGBUS.
///
/// The handler interrupts an access to memory. It reads atomics and the `Watch` of the faulting
/// mapping, and makes system calls by `rustix`, which does not touch `errno`. It takes no lock,
/// allocates nothing and does not panic.
extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: The kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO. `si_addr` reads a
    // field of this structure, any bytes of which are a valid address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    match code {
        // A page that no thread is accessing has a memory error. An access will raise SIGBUS again.
        libc::BUS_MCEERR_AO => return,
        libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR if replace(address) => return,
        _ => {}
    }
    let Some(previous) = PREVIOUS.get() else {
        return;
    };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: `previous` is the action that sigaction returned. The access is repeated,
            // faults again, and the default action ends the process.
            unsafe { libc::sigaction(signal, previous, ptr::null_mut()) };
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: With SA_SIGINFO the field holds a function of this type.
            let handler = unsafe { mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: Without SA_SIGINFO the field holds a function of this type.
            let handler = unsafe { mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler) };
            handler(signal);
        }
    }
}

fn hint(address: usize) -> &'static AtomicUsize {
    &HINTS[address / HINT_RANGE % HINTS.len()]
}

/// The mapping that holds `address`. A sequence of accesses to one region searches all slots once
/// in each [`HINT_RANGE`]. Called by the signal handler.
fn find(address: usize) -> Option<*const Watch> {
    let hint = hint(address);
    if let Some(watch) = SLOTS[hint.load(Ordering::Relaxed)].find(address) {
        return Some(watch);
    }
    let used = USED.load(Ordering::Acquire);
    let mut slots = SLOTS[..used].iter().enumerate();
    let (slot, watch) = slots.find_map(|(at, slot)| Some((at, slot.find(address)?)))?;
    hint.store(slot, Ordering::Relaxed);
    Some(watch)
}

/// Replaces the page at `address` if the page is guest memory. Called by the signal handler.
fn replace(address: usize) -> bool {
    let Some(watch) = find(address) else {
        return false;
    };
    // SAFETY: The slot was consistent when its range held `address`. At that moment `watch` was
    // alive, and its mapping existed, because a mapping is unmapped after its slot is emptied. This
    // thread is accessing `address`. Its view pins the mapping that holds the address, so that
    // mapping exists from before the signal until the handler returns. No two mappings overlap, so
    // both are the same mapping: `watch` lives until the handler returns.
    let watch = unsafe { &*watch };
    if watch.fill(address) {
        return true;
    }
    if !watch.replace(address) {
        return false;
    }
    let iova = watch.iova.wrapping_add((address - watch.start) as u64);
    watch.loss.note(iova & !(PAGE_SIZE - 1));
    true
}

/// The parts of the signal handler that change mappings. Called by a thread that accesses the
/// mapping and holds a view of it, so the mapping exists.
impl Watch {
    /// If pages are counted, allocates the page at `address` in the file. Returns whether to repeat
    /// the access.
    fn fill(&self, address: usize) -> bool {
        // After a loss the spare page may hold bytes other than 0, and the VM needs no more pages.
        if self.counting != Counting::Pages || self.loss.address().is_some() {
            return false;
        }
        let page = self.page_of(address);
        match fills::fill(page, self.page, self.spare.as_ptr().cast()) {
            Filled::New => {
                self.filled.fetch_add(self.page as u64, Ordering::Relaxed);
                true
            }
            Filled::Present => self.repeat(page),
            Filled::Missing => false,
        }
    }

    /// Whether to repeat an access to a page that exists. False if this does not help: the kernel
    /// can't read the page from swap, or the page has a memory error.
    fn repeat(&self, page: usize) -> bool {
        let (last, times) = &self.repeated;
        if last.swap(page, Ordering::Relaxed) != page {
            times.store(0, Ordering::Relaxed);
        }
        times.fetch_add(1, Ordering::Relaxed) < MAX_REPEATED
    }

    /// First address of the page that holds `address`.
    fn page_of(&self, address: usize) -> usize {
        self.start + (address - self.start) / self.page * self.page
    }

    /// Maps other memory in the place of the page at `address`, or of the whole mapping.
    fn replace(&self, address: usize) -> bool {
        if self.admits_spare_page() {
            return self.replace_page(address);
        }
        if self.is_replaced.swap(true, Ordering::Relaxed) {
            // This access began before another thread replaced the mapping, or the kernel can't
            // provide a page of the new memory either.
            return self.replace_page(address);
        }
        // Without free address space or memory, a spare page has to do.
        self.replace_whole() || self.replace_page(address)
    }

    /// Whether one more spare page may be mapped. Counts this page.
    fn admits_spare_page(&self) -> bool {
        let may = self.spare_pages.load(Ordering::Relaxed) < MAX_SPARE_PAGES
            && SPARE_PAGES.load(Ordering::Relaxed) < MAX_SPARE_PAGES_OF_ALL;
        if may {
            self.spare_pages.fetch_add(1, Ordering::Relaxed);
            SPARE_PAGES.fetch_add(1, Ordering::Relaxed);
        }
        may
    }

    /// Maps the spare page in the place of the page at `address`.
    fn replace_page(&self, address: usize) -> bool {
        let page = self.page_of(address);
        // SAFETY: The page lies inside the mapping, because the start and the size of the mapping
        // are multiples of the page size. The mapping exists, so no other memory is at `page`. It
        // is accessed only as volatile memory, for which any content is valid. With an old size of
        // 0 the spare page, which is shared memory, is not moved but mapped a second time.
        let mapped = unsafe {
            rustix::mm::mremap_fixed(
                self.spare.as_ptr().cast(),
                0,
                self.page,
                MremapFlags::MAYMOVE,
                page as *mut libc::c_void,
            )
        };
        mapped.is_ok()
    }

    /// Maps new memory in the place of the whole mapping.
    fn replace_whole(&self) -> bool {
        let len = self.end - self.start;
        // Shared memory, because private memory counts towards RLIMIT_DATA.
        // SAFETY: The kernel chooses an unused address.
        let new = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
            )
        };
        let Ok(new) = new else {
            return false;
        };
        // The new memory is moved rather than mapped with MAP_FIXED: a MAP_FIXED that fails leaves
        // a hole, in which other threads of the VM would fault.
        // SAFETY: `new` is the mapping made above, to which there are no references. The range from
        // `start` on is the mapping of this `Watch`, which exists. It is accessed only as volatile
        // memory, for which any content is valid.
        let moved = unsafe {
            advice::keep_range_out_of_dumps(new, len);
            let target = self.start as *mut libc::c_void;
            rustix::mm::mremap_fixed(new, len, len, MremapFlags::MAYMOVE, target)
        };
        if moved.is_err() {
            // SAFETY: `new` was not moved, and there are no references to it.
            let _ = unsafe { rustix::mm::munmap(new, len) };
        }
        moved.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mapping of `pages` pages without a file.
    fn guarded(pages: usize) -> GuardedMapping {
        let len = pages * PAGE_SIZE as usize;
        let whole = MmapRegionBuilder::new(len)
            .with_mmap_prot(ProtFlags::READ.bits() as i32)
            .with_mmap_flags(MapFlags::SHARED.bits() as i32 | libc::MAP_ANONYMOUS)
            .build();
        GuardedMapping::new(
            whole.unwrap(),
            PAGE_SIZE as usize,
            (0, 0, len),
            Arc::default(),
        )
        .unwrap()
    }

    #[test]
    fn the_next_fault_needs_no_search() {
        let others: Vec<_> = (0..8).map(|_| guarded(1)).collect();
        let ours = guarded(16);
        let (start, end) = (ours.watch.start, ours.watch.end);
        let watch = ptr::from_ref(&*ours.watch);
        let hinted = |address| SLOTS[hint(address).load(Ordering::Relaxed)].find(address);
        assert_eq!(find(start), Some(watch));
        assert_eq!(hinted(start + 1), Some(watch));
        assert_eq!(find(end - 1), Some(watch));
        assert_eq!(hinted(end - 1), Some(watch));
        // A wrong hint does no harm.
        hint(start).store(others[0].slot, Ordering::Relaxed);
        assert_eq!(find(start), Some(watch));
        assert_eq!(hinted(start), Some(watch));
    }
}
