// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! QPs by QP number. Polling looks QPs up without a lock, in constant time.
//!
//! The table is a radix tree of three levels. Nodes are only ever added, and are freed with the
//! table, so readers need no lock to reach an entry. An entry is one pointer.

use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::ptr::NonNull;

use virtio_rdma_abi::number::Qpn;

use crate::arc::Arc;
use crate::sync::AtomicPtr;
use crate::sync::Ordering;

/// log2 of the entries of a node. Three levels cover the 24 bits of a QP number.
#[cfg(not(loom))]
const SHIFT: u32 = 8;
#[cfg(loom)]
const SHIFT: u32 = 1;
const ENTRIES: usize = 1 << SHIFT;

/// A node of the tree: addresses of nodes or values, or null.
struct Node<T>([AtomicPtr<T>; ENTRIES]);

impl<T> Node<T> {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())))
    }
}

impl<T> Node<Node<T>> {
    /// The child node at `index`, if there is one.
    #[inline(always)]
    fn below(&self, index: usize) -> Option<&Node<T>> {
        // SAFETY: a node lives until the table is dropped, and is initialized before its address is
        // stored.
        unsafe { self.0[index].load(Ordering::Acquire).as_ref() }
    }

    /// The child node at `index`, which is added if there is none.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn grow(&self, index: usize) -> io::Result<&Node<T>> {
        if let Some(node) = self.below(index) {
            return Ok(node);
        }
        let node = Box::into_raw(crate::allocation::boxed(Node::new())?);
        let null = ptr::null_mut();
        let stored =
            self.0[index].compare_exchange(null, node, Ordering::AcqRel, Ordering::Acquire);
        match stored {
            // SAFETY: a child node lives until the table is dropped.
            Ok(_) => Ok(unsafe { &*node }),
            Err(faster) => {
                // SAFETY: the node is from `into_raw` above, and not shared.
                drop(unsafe { Box::from_raw(node) });
                // SAFETY: as in `below`: another thread has stored this node.
                Ok(unsafe { &*faster })
            }
        }
    }
}

/// The table's entry for a QP number.
///
/// # Invariants
///
/// The address is null or was returned by [`Arc::into_raw`]; the slot owns that `Arc`.
#[repr(transparent)]
pub struct TableSlot<T>(AtomicPtr<T>);

impl<T> TableSlot<T> {
    /// Whether the slot holds `value`.
    pub fn holds(&self, value: &Arc<T>) -> bool {
        ptr::eq(self.0.load(Ordering::Relaxed), Arc::as_ptr(value))
    }

    /// Sets the value and returns the previous value.
    pub fn replace(&self, value: Option<Arc<T>>) -> Option<Arc<T>> {
        // INVARIANT: the slot owns the `Arc` from here on.
        let value = value.map_or(ptr::null_mut(), Arc::into_raw);
        let before = self.0.swap(value, Ordering::AcqRel);
        // SAFETY: by the invariants the slot owned the previous value, which it no longer holds.
        NonNull::new(before).map(|before| unsafe { Arc::from_raw(before) })
    }
}

/// A sparse array of shared values.
pub struct Table<T> {
    root: Node<Node<Node<T>>>,
    owns: PhantomData<Arc<T>>,
}

fn split(qpn: Qpn) -> (usize, usize, usize) {
    let part = |level| (qpn.get() >> (level * SHIFT)) as usize;
    (part(2), part(1) % ENTRIES, part(0) % ENTRIES)
}

impl<T> Table<T> {
    /// An empty table.
    pub fn new() -> Self {
        Self {
            root: Node::new(),
            owns: PhantomData,
        }
    }

    /// The value of QP `qpn`.
    ///
    /// # Safety
    ///
    /// While the result is used, no `Arc` that was [taken](TableSlot::replace) out of the table is
    /// dropped.
    #[inline(always)]
    pub unsafe fn get(&self, qpn: Qpn) -> Option<&T> {
        let slot = self.find(qpn)?;
        // SAFETY: by the invariants of the slot, an `Arc` keeps the value alive. By the caller's
        // promise this `Arc` is not dropped while the result is used.
        unsafe { slot.0.load(Ordering::Acquire).as_ref() }
    }

    /// The slot of QP `qpn`, if its nodes exist.
    #[inline(always)]
    pub fn find(&self, qpn: Qpn) -> Option<&TableSlot<T>> {
        let (top, middle, low) = split(qpn);
        if top >= ENTRIES {
            return None;
        }
        Some(Self::slot_of(&self.root.below(top)?.below(middle)?.0[low]))
    }

    /// The slot of QP `qpn`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and `EINVAL` for a number of more than 24 bits.
    pub fn slot(&self, qpn: Qpn) -> io::Result<&TableSlot<T>> {
        let (top, middle, low) = split(qpn);
        if top >= ENTRIES {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(Self::slot_of(&self.root.grow(top)?.grow(middle)?.0[low]))
    }

    #[inline(always)]
    fn slot_of(entry: &AtomicPtr<T>) -> &TableSlot<T> {
        // SAFETY: a slot is a transparent wrapper of an entry. INVARIANT: entries are null at
        // first, and only slots change them.
        unsafe { &*ptr::from_ref(entry).cast() }
    }
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Calls `each` for the entries of a node, and frees it.
fn free<T>(node: &AtomicPtr<Node<T>>, each: impl Fn(&AtomicPtr<T>)) {
    let node = node.load(Ordering::Relaxed);
    if !node.is_null() {
        // SAFETY: nodes come from boxes, and a table that is dropped has no readers.
        let node = unsafe { Box::from_raw(node) };
        node.0.iter().for_each(each);
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for top in &self.root.0 {
            free(top, |middle| {
                free(middle, |entry| drop(Self::slot_of(entry).replace(None)));
            });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn entries_come_and_go() {
        let table = Table::new();
        // SAFETY: no `Arc` is dropped meanwhile.
        let get = |number| unsafe { table.get(Qpn::new(number)) }.copied();
        let value = |number: u32| Some(Arc::try_new(number).unwrap());
        for number in [0, 1, 255, 256, 0x1234, 0x0012_3456, 0x00ff_ffff] {
            assert_eq!(get(number), None);
            let slot = table.slot(Qpn::new(number)).unwrap();
            assert!(slot.replace(value(number)).is_none());
            assert_eq!(get(number), Some(number));
        }
        assert_eq!(get(2), None);
        assert!(table.find(Qpn::new(0x0100_0000)).is_none());
        assert!(table.slot(Qpn::new(0x0100_0000)).is_err());
        let slot = table.find(Qpn::new(256)).unwrap();
        let seven = Arc::try_new(7).unwrap();
        assert!(!slot.holds(&seven));
        assert_eq!(slot.replace(Some(seven.clone())).as_deref(), Some(&256));
        assert!(slot.holds(&seven));
        assert_eq!(slot.replace(None).as_deref(), Some(&7));
        assert!(slot.replace(None).is_none());
        assert_eq!(get(255), Some(255));
    }

    #[test]
    fn a_table_drops_what_it_holds() {
        let value = std::rc::Rc::new(());
        let table = Table::new();
        for number in [3, 70_000] {
            let shared = Arc::try_new(value.clone()).unwrap();
            table.slot(Qpn::new(number)).unwrap().replace(Some(shared));
        }
        drop(table);
        assert_eq!(std::rc::Rc::strong_count(&value), 1);
    }
}
