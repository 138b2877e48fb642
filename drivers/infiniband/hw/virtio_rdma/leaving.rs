// SPDX-License-Identifier: GPL-2.0

//! Numbers of QPs and CQs that are being destroyed.
//!
//! Once the device has answered the command that destroys an object, it may assign the number to a
//! new object. The driver's tables still have the destroyed object under this number, and CQs still
//! have its CQEs. So the creator of an object waits until its number is [`Vacated`]. Destructions
//! of different objects do not wait for each other.
//!
//! Lock order: no other lock is taken while `Leaving::numbers` is held.

use crate::{
    abi::number::{
        Cqn,
        Qpn, //
    },
    ctrl,
};
use kernel::{
    prelude::*,
    sync::{
        new_condvar,
        new_mutex,
        CondVar,
        Mutex, //
    }, //
};

/// Maximum number of objects that are destroyed at a time: at most half of them have a command in
/// flight, and the others are being removed from the driver's tables. Because of the limit, a
/// destruction allocates no memory.
const PLACES: usize = 2 * ctrl::SLOTS;

/// The number of a QP or CQ.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    Qp(Qpn),
    Cq(Cqn),
}

impl From<Qpn> for Number {
    fn from(qpn: Qpn) -> Self {
        Self::Qp(qpn)
    }
}

impl From<Cqn> for Number {
    fn from(cqn: Cqn) -> Self {
        Self::Cq(cqn)
    }
}

/// The number of a new QP or CQ, under which the driver's tables have no other object.
#[derive(Clone, Copy)]
pub(crate) struct Vacated<N>(N);

impl<N: Copy> Vacated<N> {
    /// The number.
    pub(crate) fn get(self) -> N {
        self.0
    }
}

/// The QPs and CQs of the kernel that are being destroyed.
#[pin_data]
pub(crate) struct Leaving {
    #[pin]
    numbers: Mutex<[Option<Number>; PLACES]>,
    #[pin]
    changed: CondVar,
}

impl Leaving {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            numbers <- new_mutex!([None; PLACES], "virtio_rdma::leaving"),
            changed <- new_condvar!("virtio_rdma::leaving::changed"),
        })
    }

    /// Begins the destruction of an object, before its command is sent. The guard is dropped once
    /// the driver's tables do not have the object any more.
    pub(crate) fn begin(&self, number: impl Into<Number>) -> LeavingGuard<'_> {
        let number = number.into();
        let mut numbers = self.numbers.lock();
        loop {
            if let Some(place) = numbers.iter_mut().find(|place| place.is_none()) {
                *place = Some(number);
                return LeavingGuard {
                    leaving: self,
                    number,
                };
            }
            self.changed.wait(&mut numbers);
        }
    }

    /// Waits until no object with the number of a new object is being destroyed.
    pub(crate) fn await_end<N: Copy + Into<Number>>(&self, number: N) -> Vacated<N> {
        let wanted = Some(number.into());
        let mut numbers = self.numbers.lock();
        while numbers.contains(&wanted) {
            self.changed.wait(&mut numbers);
        }
        Vacated(number)
    }
}

/// A guard: an object is being destroyed.
pub(crate) struct LeavingGuard<'a> {
    leaving: &'a Leaving,
    number: Number,
}

impl Drop for LeavingGuard<'_> {
    fn drop(&mut self) {
        let own = Some(self.number);
        let mut numbers = self.leaving.numbers.lock();
        if let Some(place) = numbers.iter_mut().find(|place| **place == own) {
            *place = None;
        }
        drop(numbers);
        self.leaving.changed.notify_all();
    }
}
